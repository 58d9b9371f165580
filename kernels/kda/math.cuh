#pragma once
/// Scalar device functions of KDA: exp2, bf16 pairs, and the gate in base-2 logarithms.

#include "kernels/base/ptx.cuh"

#include <cstdint>
#include <type_traits>

namespace moeplan::kernels::kda {

inline constexpr float log2_e = 1.4426950408889634f;
/// Largest decay of 8 tokens, in powers of two, for which the factored form exp(G_i - M) exp(M - G_j) around the middle
/// M of 16 tokens stays in range (42 nats each side; the bounded gate needs at most 40). Past it, pairs are computed
/// one by one.
inline constexpr float factored_limit = 60.5f;
/// Decay of one token past which nothing of an fp32 state is left; keeps sums finite for saturated gates.
inline constexpr float strongest_log2 = -256.0f;

/// exp(A_log), finite so that a saturated gate times zero is zero.
__device__ __forceinline__ float gate_scale(float a_log) { return fminf(expf(a_log), 1e37f); }

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float2 unpack_bf16(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ __forceinline__ std::uint32_t multiply_bf16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

/// Log decay in powers of two: the softplus gate, with a = exp(A_log).
__device__ __forceinline__ float softplus_log2(float z, float a) {
  const float x = exp2_fast(-fabsf(z) * log2_e);
  // log(1 + x): lg2 is only absolutely accurate near 1, so small x takes the series.
  const float series = log2_e * x * (1.0f - x * (0.5f - x * (0.33333333f - x * 0.25f)));
  const float log_part = x < 0.04f ? series : log2_fast(1.0f + x);
  return fmaxf(-a * fmaf(fmaxf(z, 0.0f), log2_e, log_part), strongest_log2);
}
/// The bounded gate, with exp(A_log) and its bound both times log2(e).
__device__ __forceinline__ float bounded_log2(float z, float a_log2, float bound_log2) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + exp2_fast(fmaxf(-a_log2 * z, -126.0f))));
  return bound_log2 * inverse;
}

/// Derivatives of the log decay (in nats) by z and by A_log.
struct GateSlope {
  float by_z, by_a_log;
};
__device__ __forceinline__ GateSlope gate_slope(float z, float a, float bound) {
  if (bound == 0.0f) {
    const float x = exp2_fast(-fabsf(z) * log2_e), r = __fdividef(1.0f, 1.0f + x);
    const float g = softplus_log2(z, a);
    if (g <= strongest_log2) return {0.0f, 0.0f};
    return {-a * (z >= 0.0f ? r : x * r), g * (1.0f / log2_e)};
  }
  const float y = fminf(fmaxf(z == 0.0f ? 0.0f : a * z, -60.0f), 60.0f);
  const float x = exp2_fast(-fabsf(y) * log2_e), r = __fdividef(1.0f, 1.0f + x);
  const float slope = fabsf(y) < 60.0f ? bound * x * r * r : 0.0f;  // sigmoid'(y), the same for y and -y
  return {slope == 0.0f ? 0.0f : slope * a, slope * y};
}

/// Sums `count` (16 or 8) values over the 32 lanes with as many shuffles; value i ends in the lanes from 32 / count i
/// on.
template <int count>
__device__ __forceinline__ float reduce_rows(float (&s)[count]) {
  static_assert(count == 16 || count == 8);
  const int lane = threadIdx.x & 31;
  const auto halve = [&](auto half, int x) {
    constexpr int n = decltype(half)::value;
    const bool upper = (lane & x) != 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float send = upper ? s[i] : s[i + n], keep = upper ? s[i + n] : s[i];
      s[i] = keep + __shfl_xor_sync(0xffffffffu, send, x);
    }
  };
  if constexpr (count == 16) {
    halve(std::integral_constant<int, 8>{}, 16);
    halve(std::integral_constant<int, 4>{}, 8);
    halve(std::integral_constant<int, 2>{}, 4);
    halve(std::integral_constant<int, 1>{}, 2);
  } else {
    halve(std::integral_constant<int, 4>{}, 16);
    halve(std::integral_constant<int, 2>{}, 8);
    halve(std::integral_constant<int, 1>{}, 4);
    s[0] += __shfl_xor_sync(0xffffffffu, s[0], 2);
  }
  return s[0] + __shfl_xor_sync(0xffffffffu, s[0], 1);
}

/// ldmatrix addresses along the channels of an image: `start` is this lane's address in columns 0 to 15 of a panel, the
/// result that in the 16 columns `step`. The swizzle is an exclusive or, so that a step is one more of them.
__device__ __forceinline__ std::uint32_t along_channels(std::uint32_t start, int step) {
  return (start ^ ((step & 3) << 5)) + (step >> 2) * (64 * 128);
}

/// Byte offset of channel `channel` of row `row` in an image of 64-row panels.
__device__ __forceinline__ std::uint32_t image_offset(int row, int channel) {
  return (channel >> 6) * (64 * 128) + row * 128 + ((((channel & 63) >> 3) ^ (row & 7)) << 4) + (channel & 7) * 2;
}

}  // namespace moeplan::kernels::kda
