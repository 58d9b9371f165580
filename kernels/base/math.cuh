#pragma once
/// Scalar functions with their derivatives on the device, fp32. Errors are a few units of fp32, so that storing to bf16 is what rounds:
/// powers of two and reciprocals are the special function unit's, without the steps that would keep denormals, `tanh` switches to its series where the
/// quotient would cancel.

#include "core/spec/model.hpp"
#include "kernels/activation/op.hpp"
#include "kernels/base/pack.cuh"
#include "kernels/gated_rms_norm/op.hpp"

namespace moeplan::cuda {

/// A function's value and its derivative.
struct Dual {
  float value, slope;
};

__device__ __forceinline__ float exponential(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
}
/// Of a number that is not denormal; 0 of an infinite one.
__device__ __forceinline__ float reciprocal(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}
__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + exponential(-x)); }
__device__ __forceinline__ Dual sigmoid_dual(float x) {
  const float s = sigmoid(x);
  return {s, s * (1.0f - s)};
}
__device__ __forceinline__ Dual silu_dual(float x) {
  const float s = sigmoid(x);
  return {x * s, s * (1.0f + x * (1.0f - s))};
}
/// The exact form, x Phi(x). Phi by Abramowitz and Stegun 7.1.26 (off by 0.75e-7 at most), whose exponential is the density's too.
__device__ __forceinline__ Dual gelu_dual(float x) {
  const float density = exponential(-0.5f * x * x), t = reciprocal(fmaf(fabsf(x), 0.3275911f * 0.70710678f, 1.0f));
  const float tail = 0.5f * density * t * fmaf(t, fmaf(t, fmaf(t, fmaf(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f), 0.254829592f);
  const float phi = x < 0 ? tail : 1.0f - tail;
  return {x * phi, fmaf(x * 0.39894228040143268f, density, phi)};
}
__device__ __forceinline__ Dual relu2_dual(float x) { return x > 0 ? Dual{x * x, 2 * x} : Dual{0, 0}; }
/// Below 0.35 the series to x^9 (relative error under 1e-7 there); above, 1 - 2 / (e^2x + 1).
__device__ __forceinline__ float hyperbolic_tangent(float x) {
  const float a = fabsf(x);
  if (a < 0.35f) {
    const float s = x * x;
    return fmaf(x * s, fmaf(s, fmaf(s, fmaf(s, 62.0f / 2835.0f, -17.0f / 315.0f), 2.0f / 15.0f), -1.0f / 3.0f), x);
  }
  return copysignf(fmaf(-2.0f, reciprocal(exponential(2.0f * a) + 1.0f), 1.0f), x);
}
__device__ __forceinline__ Dual tanh_dual(float x) {
  const float t = hyperbolic_tangent(x);
  return {t, 1.0f - t * t};
}

/// Chosen by selection rather than by branches: these would stand in loops that are unrolled over a row's elements.
__device__ __forceinline__ Dual gate_dual(op::GateFunction f, float x) {
  const float s = sigmoid(x), s_slope = s * (1.0f - s);
  const bool silu = f == op::GateFunction::silu, identity = f == op::GateFunction::identity;
  return {identity ? x : silu ? x * s : s, identity ? 1.0f : silu ? fmaf(x, s_slope, s) : s_slope};
}

}  // namespace moeplan::cuda
