/// \file
/// Row scatter by token: a row of x is read once and written to its k places with 16-byte accesses, so the bytes are
/// (1 + k) t h 2. The backward sum is the unweighted combine.
#include "kernels/combine/cuda.hpp"
#include "kernels/permute/cuda.hpp"

namespace moeplan::kernels::permute {
namespace {

constexpr int threads = 128;
constexpr int per_thread = 2; // 16-byte pieces in flight

__global__ void __launch_bounds__(threads) scatter_rows(int top_k, int pieces, int slices, const int* row_of,
                                                        const uint4* x, uint4* permuted) {
    const std::int64_t token = blockIdx.x / slices;
    const int first = blockIdx.x % slices * (threads * per_thread) + threadIdx.x;
    uint4 v[per_thread];
#pragma unroll
    for (int i = 0; i < per_thread; ++i)
        if (first + i * threads < pieces) v[i] = x[token * pieces + first + i * threads];
    for (int j = 0; j < top_k; ++j) {
        const std::int64_t row = row_of[token * top_k + j];
        if (row < 0) continue;
#pragma unroll
        for (int i = 0; i < per_thread; ++i)
            if (first + i * threads < pieces) __stcs(&permuted[row * pieces + first + i * threads], v[i]);
    }
}

} // namespace

void forward(const Dims& d, int h, const int* row_of, const __nv_bfloat16* x, __nv_bfloat16* permuted,
             cudaStream_t stream) {
    const std::string shape = "tokens=" + std::to_string(d.tokens) + " top_k=" + std::to_string(d.top_k) +
                              " hidden=" + std::to_string(h);
    if (h <= 0 || h % 8 != 0)
        throw UnsupportedShape("permute [" + shape + "]: hidden must be a multiple of 8 (16-byte rows); pad it");
    if (d.tokens == 0) return;
    const int pieces = h / 8, slices = (pieces + threads * per_thread - 1) / (threads * per_thread);
    scatter_rows<<<static_cast<unsigned>(static_cast<std::int64_t>(d.tokens) * slices), threads, 0, stream>>>(
        d.top_k, pieces, slices, row_of, reinterpret_cast<const uint4*>(x), reinterpret_cast<uint4*>(permuted));
    check_launch("permute forward", shape);
}

void backward(const Dims& d, int h, const int* row_of, const __nv_bfloat16* dpermuted, __nv_bfloat16* dx,
              cudaStream_t stream) {
    combine::forward(d, h, row_of, nullptr, dpermuted, dx, stream);
}

} // namespace moeplan::kernels::permute
