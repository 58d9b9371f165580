#pragma once
/// Attention over heads of 257 to 512 columns (Gemma-4's full layers).

#include "kernels/attention/geometry.cuh"

namespace moeplan::cuda::attention {

[[nodiscard]] inline bool is_wide(const Problem& p) { return p.d_qk > 256 || p.d_v > 256; }
void forward_wide(const Problem& p, cudaStream_t stream);
void backward_wide_q(const Problem& p, cudaStream_t stream);
void backward_wide_k(const Problem& p, cudaStream_t stream);

}  // namespace moeplan::cuda::attention
