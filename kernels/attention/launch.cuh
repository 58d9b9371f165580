#pragma once
/// The attention kernels as the host calls them: each launch lives in a file of its own, so that they compile apart.

#include <string>

#include "kernels/attention/geometry.cuh"

namespace moeplan::cuda::attention {

/// mma.sync, any case.
void forward_tiles(const Problem& p, cudaStream_t stream);
void backward_tiles_q(const Problem& p, cudaStream_t stream);
void backward_tiles_k(const Problem& p, cudaStream_t stream);

/// Whether the Hopper kernels (wgmma, tensor copies) can run this call: on such a device, rows on 16 bytes, no
/// softcap, a shared key that starts on a panel of 64 columns.
bool hopper_takes(const Problem& p);
void forward_hopper(const Problem& p, cudaStream_t stream);
void backward_hopper_q(const Problem& p, cudaStream_t stream);
void backward_hopper_k(const Problem& p, cudaStream_t stream);

/// Row sums <dy, y> and log-sum-exps by head, what the backward kernels read.
void prepare_rows(const Problem& p, cudaStream_t stream);
/// dsinks_h = -sum_i e^(sink_h - lse_i) delta_i.
void sink_gradient(const Problem& p, cudaStream_t stream);
/// Sum over key heads of `shared_parts`.
void sum_shared(const Problem& p, cudaStream_t stream);
/// Zeros in the rows of packed tensors that no sequence has: y and lse, or the gradients.
void clear_outside(const Problem& p, bool backward, cudaStream_t stream);

std::string shape(const Problem& p);

/// The problem with its section set for `heads` heads of `tiles` slots whose blocks stream `bytes` a head: 32 MB
/// together, and at least two blocks for each of 132 multiprocessors.
Problem in_sections(Problem p, int heads, int tiles, double bytes);
/// Streamed by the blocks of one head: keys and values, or the queries and gradients of a group.
double key_bytes(const Problem& p);
double query_bytes(const Problem& p);

/// Raises the kernel's limit of dynamic shared memory and launches it.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), std::int64_t blocks, int threads, std::size_t shared, cudaStream_t stream,
            const char* name, const std::string& what, const Arguments&... arguments) {
  kernels::check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
                 name);
  kernel<<<static_cast<unsigned>(blocks), threads, shared, stream>>>(arguments...);
  kernels::check_launch(name, what);
}

}  // namespace moeplan::cuda::attention
