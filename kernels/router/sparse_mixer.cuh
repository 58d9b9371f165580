#pragma once
/// SparseMixer's routing on the GPU: a warp a token, expert e in lane e % 32, its logits read again for every choice (a token's are in cache). Mathematics
/// and order: sparse_mixer.hpp. Bytes: 8 tokens x experts forward (logits read, scores written), 12 backward; deterministic.

#include "kernels/base/cuda.hpp"
#include "kernels/base/pack.cuh"

namespace moeplan::cuda::router_detail {

inline constexpr int mixer_warps = 8;

struct SparseMixer {
  std::int64_t tokens;
  int experts, top_k;
  float jitter, scale;
  const float* logits;   ///< [tokens, experts]
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}

/// exp(z - most) where e comes close to the choice that has `most`, else 0.
__device__ __forceinline__ float near(float z, float most, float jitter) { return (most - z) / fmaxf(fabsf(z), most) > 2 * jitter ? 0.0f : expf(z - most); }

/// Whether one of the first `count` choices is e.
__device__ __forceinline__ bool taken(const int* chosen, int count, int e) {
  bool found = false;
  for (int j = 0; j < count; ++j) found |= chosen[j] == e;
  return found;
}

__global__ void __launch_bounds__(mixer_warps * 32) mix_forward(SparseMixer a, float* scores, int* indices, float* weights, int* counts) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * mixer_warps + warp;
  if (t >= a.tokens) return;
  const float* z = a.logits + t * a.experts;
  float most = -INFINITY, sum = 0;
  for (int e = lane; e < a.experts; e += 32) most = fmaxf(most, z[e]);
  most = warp_max(most);
  for (int e = lane; e < a.experts; e += 32) sum += expf(z[e] - most);
  sum = warp_sum(sum);
  for (int e = lane; e < a.experts; e += 32) scores[t * a.experts + e] = expf(z[e] - most) / sum;
  __shared__ int choices[mixer_warps][32];
  int* chosen = choices[warp];
  for (int j = 0; j < a.top_k; ++j) {
    float best = -INFINITY;
    unsigned at = ~0u;
    for (int e = lane; e < a.experts; e += 32)
      if (!taken(chosen, j, e) && (at == ~0u || z[e] > best)) best = z[e], at = static_cast<unsigned>(e);
    const float top = warp_max(at == ~0u ? -INFINITY : best);
    const unsigned winner = __reduce_min_sync(0xffffffffu, at != ~0u && best == top ? at : ~0u);
    float near_sum = 0;
    for (int e = lane; e < a.experts; e += 32)
      if (!taken(chosen, j, e)) near_sum += near(z[e], top, a.jitter);
    near_sum = warp_sum(near_sum);
    const int e = winner < static_cast<unsigned>(a.experts) ? static_cast<int>(winner) : 0;   // logits that are no numbers: still an expert
    __syncwarp();
    if (lane == 0) {
      chosen[j] = e;
      indices[t * a.top_k + j] = e;
      weights[t * a.top_k + j] = a.scale / near_sum;
      atomicAdd(&counts[e], 1);
    }
    __syncwarp();
  }
}

/// dlogits += the gradient of the weights: sum over j of dw_j w_j ([e = e_j] - p_je).
__global__ void __launch_bounds__(mixer_warps * 32) mix_backward(SparseMixer a, const int* indices, const float* dweights, float* dlogits) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * mixer_warps + warp;
  if (t >= a.tokens) return;
  const float* z = a.logits + t * a.experts;
  const int* chosen = indices + t * a.top_k;
  for (int j = 0; j < a.top_k; ++j) {
    const int mine = chosen[j];
    const float top = z[mine];
    float sum = 0;
    for (int e = lane; e < a.experts; e += 32)
      if (!taken(chosen, j, e)) sum += near(z[e], top, a.jitter);
    sum = warp_sum(sum);
    const float reach = a.scale * dweights[t * a.top_k + j] / sum;   // dw_j w_j: w_j = 1 / sum
    for (int e = lane; e < a.experts; e += 32)
      if (!taken(chosen, j, e)) dlogits[t * a.experts + e] += reach * ((e == mine ? 1.0f : 0.0f) - near(z[e], top, a.jitter) / sum);
  }
}

}  // namespace moeplan::cuda::router_detail
