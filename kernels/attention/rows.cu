/// \file
/// The memory-bound kernels around the products of attention's backward.

#include "kernels/attention/launch.cuh"

namespace moeplan::cuda::attention {
namespace {

constexpr int threads = 256, block_rows = 32;

/// 32 queries of one head a block, four a warp.
__global__ void __launch_bounds__(threads) row_sums(const Problem p) {
  __shared__ float delta[block_rows], lse[block_rows];
  const int head = blockIdx.x % p.heads, first = blockIdx.x / p.heads * block_rows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = warp; i < block_rows; i += threads / 32) {
    if (first + i >= p.queries) break;
    const i64 row = (static_cast<i64>(first + i) * p.heads + head) * p.d_v;
    float sum = 0;
    if (p.vectors) {
      for (int c = lane * 4; c < p.d_v; c += 128) {
        const auto y = *reinterpret_cast<const Pack<bf16, 4>*>(p.y + row + c),
                   dy = *reinterpret_cast<const Pack<bf16, 4>*>(p.dy + row + c);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum = fmaf(y[j], dy[j], sum);
      }
    } else {
      for (int c = lane; c < p.d_v; c += 32) sum = fmaf(widened(p.y[row + c]), widened(p.dy[row + c]), sum);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (lane == 0) delta[i] = sum, lse[i] = p.lse[static_cast<i64>(first + i) * p.heads + head] * log2_e;
  }
  __syncthreads();
  if (threadIdx.x < block_rows && first + static_cast<int>(threadIdx.x) < p.queries) {
    const i64 to = static_cast<i64>(head) * p.queries + first + threadIdx.x;
    p.delta_rows[to] = delta[threadIdx.x], p.lse_rows[to] = lse[threadIdx.x];
  }
}

/// A block a head; threads take every 256th query, then fold in halves.
__global__ void __launch_bounds__(threads) sinks(const Problem p) {
  __shared__ float part[threads];
  const i64 first = static_cast<i64>(blockIdx.x) * p.queries;
  const float sink = p.sinks[blockIdx.x] * log2_e;
  const int begin = p.starts == nullptr ? 0 : bound(p, 0);
  const int end = p.starts == nullptr ? p.queries : min(bound(p, p.sequences) - p.missing * p.sequences, p.queries);
  float sum = 0;
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += threads)
    sum = fmaf(exp2f(sink - p.lse_rows[first + i]), p.delta_rows[first + i], sum);
  part[threadIdx.x] = sum;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  if (threadIdx.x == 0) p.dsinks[blockIdx.x] = -part[0];
}

__global__ void __launch_bounds__(threads) shared_sum(const Problem p) {
  const i64 n = static_cast<i64>(p.keys) * p.shared, i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
#pragma unroll 8
  for (int head = 0; head < p.kv_heads; ++head) sum += p.shared_parts[head * n + i];
  p.dk_shared[i] = __float2bfloat16(sum);
}

template <class T>
__device__ void clear(T* tensor, i64 width, int begin, int end, int rows) {
  if (tensor == nullptr) return;
  const i64 step = static_cast<i64>(gridDim.x) * threads, thread = static_cast<i64>(blockIdx.x) * threads + threadIdx.x;
  for (i64 i = thread; i < begin * width; i += step) tensor[i] = T(0.0f);
  for (i64 i = end * width + thread; i < rows * width; i += step) tensor[i] = T(0.0f);
}

__global__ void __launch_bounds__(threads) outside(const Problem p, bool backward) {
  const int first = bound(p, 0), last = max(bound(p, p.sequences), first);
  const int end = min(max(last - p.missing * p.sequences, first), p.queries), begin = min(first, p.queries);
  if (!backward) {
    clear(p.y, static_cast<i64>(p.heads) * p.d_v, begin, end, p.queries);
    clear(p.lse, static_cast<i64>(p.heads), begin, end, p.queries);
    return;
  }
  clear(p.dq, static_cast<i64>(p.heads) * p.d_qk, begin, end, p.queries);
  clear(p.dk, static_cast<i64>(p.kv_heads) * p.own, first, last, p.keys);
  clear(p.dv, static_cast<i64>(p.kv_heads) * p.d_v, first, last, p.keys);
  clear(p.shared_parts, p.shared, first, last, p.keys);
  for (int head = 1; head < p.kv_heads && p.shared_parts != nullptr; ++head)
    clear(p.shared_parts + static_cast<i64>(head) * p.keys * p.shared, p.shared, first, last, p.keys);
}

}  // namespace

void prepare_rows(const Problem& p, cudaStream_t stream) {
  const i64 blocks = static_cast<i64>((p.queries + block_rows - 1) / block_rows) * p.heads;
  row_sums<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(p);
  kernels::check_launch("attention row sums", shape(p));
}

void sink_gradient(const Problem& p, cudaStream_t stream) {
  sinks<<<static_cast<unsigned>(p.heads), threads, 0, stream>>>(p);
  kernels::check_launch("attention gradient of the sinks", shape(p));
}

void sum_shared(const Problem& p, cudaStream_t stream) {
  const i64 n = static_cast<i64>(p.keys) * p.shared;
  shared_sum<<<static_cast<unsigned>((n + threads - 1) / threads), threads, 0, stream>>>(p);
  kernels::check_launch("attention gradient of the shared key", shape(p));
}

void clear_outside(const Problem& p, bool backward, cudaStream_t stream) {
  outside<<<132, threads, 0, stream>>>(p, backward);
  kernels::check_launch("attention rows outside the sequences", shape(p));
}

}  // namespace moeplan::cuda::attention
