#pragma once
/// What the forward and the reverse scan share. A warpgroup holds 64 value columns of the transposed state, [64, D
/// keys], in fp32 wgmma accumulators for a whole segment; one producer warp brings the records with bulk copies. Per
/// chunk the state is rounded to bf16 once, as the A operand; what it accumulates into is never rounded.

#include "kernels/kda/launch.hpp"
#include "kernels/kda/math.cuh"

namespace moeplan::kernels::kda {

/// The same value in all lanes, known to ptxas as such: in paths that it takes for divergent it serialises wgmma.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
__device__ __forceinline__ Segment uniform(const Segment& x) {
  return {uniform(x.first_chunk), uniform(x.chunks), uniform(x.sequence), uniform(x.position)};
}

/// Accumulators [64, 8 n] to A fragments of the same matrix.
template <int count>
__device__ __forceinline__ void to_fragments(std::uint32_t (&a)[count / 8][4], const float (&d)[count]) {
#pragma unroll
  for (int s = 0; s < count / 8; ++s) {
    a[s][0] = ptx::pack_bf16(d[8 * s], d[8 * s + 1]);
    a[s][1] = ptx::pack_bf16(d[8 * s + 2], d[8 * s + 3]);
    a[s][2] = ptx::pack_bf16(d[8 * s + 4], d[8 * s + 5]);
    a[s][3] = ptx::pack_bf16(d[8 * s + 6], d[8 * s + 7]);
  }
}

/// Keeps A registers of a wgmma in flight from being reused.
template <int steps>
__device__ __forceinline__ void keep_alive(std::uint32_t (&a)[steps][4]) {
#pragma unroll
  for (int s = 0; s < steps; ++s)
#pragma unroll
    for (int x = 0; x < 4; ++x) asm volatile("" : "+r"(a[s][x])::"memory");
}

/// d *= gamma of the accumulator's key columns.
template <int D>
__device__ __forceinline__ void decay_state(float (&d)[D / 2], const float* gamma) {
  const int column = 2 * (threadIdx.x & 3);
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    const float2 y = *reinterpret_cast<const float2*>(gamma + 8 * j + column);
    d[4 * j] *= y.x, d[4 * j + 1] *= y.y, d[4 * j + 2] *= y.x, d[4 * j + 3] *= y.y;
  }
}

/// Fragments of a [64 values, 16 steps of tokens] matrix to the image [token][64 values], transposed on the way.
template <int steps>
__device__ __forceinline__ void store_transposed(std::uint32_t shared, std::uint32_t (&a)[steps][4]) {
  const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3, m = lane >> 3, r = lane & 7;
#pragma unroll
  for (int s = 0; s < steps; ++s)
    ptx::store_matrix_x4_transposed(shared + image_offset(16 * s + (m >> 1) * 8 + r, 16 * warp + (m & 1) * 8), a[s]);
}

/// State fragments to the image [64 value rows][D keys] whose panels are `panel_stride` bytes apart.
template <int D>
__device__ __forceinline__ void store_state(std::uint32_t shared, std::uint32_t (&a)[D / 16][4]) {
  const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3, m = lane >> 3, r = lane & 7;
#pragma unroll
  for (int s = 0; s < D / 16; ++s)
    ptx::store_matrix_x4(shared + image_offset(16 * warp + (m & 1) * 8 + r, 16 * s + (m >> 1) * 8), a[s]);
}

/// A state [D keys, D values] in fp32, to or from the accumulators of value columns `first_value` to + 63.
template <int D, bool load>
__device__ __forceinline__ void move_state(float (&d)[D / 2], std::conditional_t<load, const float*, float*> state,
                                           int first_value) {
  const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
  auto* corner = state + (2 * (lane & 3)) * D + first_value + 16 * warp + (lane >> 2);
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      auto& element = corner[(8 * j + (x & 1)) * D + (x >> 1) * 8];
      if constexpr (load)
        d[4 * j + x] = element;
      else
        element = d[4 * j + x];
    }
}

/// Where the state of (segment, head) lies in a per-segment or per-sequence tensor.
template <int D>
__device__ __forceinline__ std::int64_t state_offset(const Launch& launch, bool by_sequence, int segment, int sequence,
                                                     int group_head) {
  const std::int64_t index = by_sequence
                                 ? static_cast<std::int64_t>(sequence) * launch.heads + launch.first_head + group_head
                                 : static_cast<std::int64_t>(segment) * launch.group_heads + group_head;
  return index * D * D;
}

/// Two consumer warpgroups need more registers than an equal share: the producer is a warpgroup that gives its own up.
template <int groups>
inline constexpr int scan_threads = groups == 2 ? 384 : 160;

/// Every consumer thread says itself that it is through with a stage. One lane a warp behind a __syncwarp would do as
/// well and is as fast, but compute-sanitizer's racecheck does not count the other lanes' reads as over
/// (docs/kernels.md).
template <int stages>
struct Pipeline {
  ptx::Barrier full[stages], empty[stages];
};

}  // namespace moeplan::kernels::kda
