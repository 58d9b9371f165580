#pragma once
/// Weighted combine of expert outputs on the GPU. Definitions: reference.hpp of this folder. fp32 sums in the order of
/// j, no atomics. h is a multiple of 8.

#include "kernels/base/cuda.hpp"
#include "kernels/permute/dims.hpp"

#include <cuda_bf16.h>

namespace moeplan::kernels::combine {

/// out[t] = sum_j weights[t, j] y[row_of[t, j]]; without weights (null) the plain sum.
void forward(const permute::Dims& dims, int h, const int* row_of, const float* weights, const __nv_bfloat16* y,
             __nv_bfloat16* out, cudaStream_t stream);

/// dy[row_of[t, j]] = weights[t, j] dout[t] and dweights[t, j] = <dout[t], y[row_of[t, j]]>. Either of dy and dweights
/// may be null.
void backward(const permute::Dims& dims, int h, const int* row_of, const float* weights, const __nv_bfloat16* y,
              const __nv_bfloat16* dout, __nv_bfloat16* dy, float* dweights, cudaStream_t stream);

} // namespace moeplan::kernels::combine
