/// Gated activations on the GPU: y = f(g) h(u) with x = [g | u] or neighbours;  dg = dy f'(g) h(u),  du = dy f(g) h'(u).
/// Mapping: a thread owns 8 columns of y and so reads two packs of 16 bytes of x (g and u, or 16 neighbours), two such in flight. Bytes at
/// n = tokens x intermediate: forward 6 n, backward 10 n, at the memory's speed; SiTU's forward has one quotient for all of its factors.

#include "kernels/base/math.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/glu/op.hpp"

namespace moeplan::cuda {
namespace {

struct Form {
  Activation activation;
  bool interleaved;
  float beta, linear_beta, alpha, limit, up_offset, inverse, linear_inverse;   ///< inverse: of the betas
  RowOf rows;   ///< of y
};

__device__ __forceinline__ Dual situ_gate(float g, float beta, float inverse) {
  const Dual t = tanh_dual(g * inverse), s = sigmoid_dual(g);
  return {beta * t.value * s.value, fmaf(t.slope, s.value, beta * t.value * s.slope)};
}
__device__ __forceinline__ Dual situ_up(float u, float lambda, float inverse) {
  const Dual t = tanh_dual(u * inverse);
  return {lambda * t.value, t.slope};
}
/// 1 - e^-x for x >= 0, e = e^-x: by its series where the difference would cancel.
__device__ __forceinline__ float risen(float x, float e) { return x < 0.004f ? fmaf(x, -0.5f * x, x) : 1.0f - e; }
/// beta tanh(g / beta) sigmoid(g) lambda tanh(u / lambda) over one denominator: three exponentials and one reciprocal instead of three of each,
/// at which the special function unit and the rest would be slower than the memory.
__device__ __forceinline__ float situ_product(float g, float u, float both, float inverse, float linear_inverse) {
  const float x = fabsf(2.0f * g * inverse), z = fabsf(2.0f * u * linear_inverse);
  const float e = exponential(-x), s = exponential(-fmaxf(g, -80.0f)), f = exponential(-z);
  const float product = both * risen(x, e) * risen(z, f) * reciprocal((1.0f + e) * (1.0f + s) * (1.0f + f));
  return __uint_as_float(__float_as_uint(product) | ((__float_as_uint(g) ^ __float_as_uint(u)) & 0x80000000u));   // product >= 0
}
__device__ __forceinline__ Dual clamped_gate(float g, float alpha, float limit) {
  const float clamped = fminf(g, limit);
  const Dual s = sigmoid_dual(alpha * clamped);
  return {clamped * s.value, g > limit ? 0.0f : fmaf(clamped * alpha, s.slope, s.value)};
}
__device__ __forceinline__ Dual clamped_up(float u, float limit, float offset) {
  return {fminf(fmaxf(u, -limit), limit) + offset, fabsf(u) > limit ? 0.0f : 1.0f};
}

/// Two packs of x: g and u, or neighbours g0 u0 g1 u1 ... across both.
template <int V>
struct Halves {
  Pack<bf16, V> a, b;
};
template <int V>
__device__ __forceinline__ float gate_at(const Halves<V>& h, bool interleaved, int j) {
  if (!interleaved) return h.a[j];
  return 2 * j < V ? h.a[2 * j < V ? 2 * j : 0] : h.b[2 * j < V ? 0 : 2 * j - V];
}
template <int V>
__device__ __forceinline__ float up_at(const Halves<V>& h, bool interleaved, int j) {
  if (!interleaved) return h.b[j];
  return 2 * j + 1 < V ? h.a[2 * j + 1 < V ? 2 * j + 1 : 0] : h.b[2 * j + 1 < V ? 0 : 2 * j + 1 - V];
}

/// Calls use(j, f(g), h(u)) for V columns of y; the switch stays outside of the loop over them.
template <int V, class Use>
__device__ __forceinline__ void evaluate(const Form& form, const Halves<V>& h, Use&& use) {
  const auto each = [&](auto gate, auto up) {
#pragma unroll
    for (int j = 0; j < V; ++j) use(j, gate(gate_at<V>(h, form.interleaved, j)), up(up_at<V>(h, form.interleaved, j)));
  };
  const auto plain = [](float u) { return Dual{u, 1.0f}; };
  switch (form.activation) {
    case Activation::silu: each([](float g) { return silu_dual(g); }, plain); break;
    case Activation::gelu: each([](float g) { return gelu_dual(g); }, plain); break;
    case Activation::relu2: each([](float g) { return relu2_dual(g); }, plain); break;
    case Activation::situ: each([&](float g) { return situ_gate(g, form.beta, form.inverse); }, [&](float u) { return situ_up(u, form.linear_beta, form.linear_inverse); }); break;
    case Activation::clamped_swiglu:
      each([&](float g) { return clamped_gate(g, form.alpha, form.limit); }, [&](float u) { return clamped_up(u, form.limit, form.up_offset); });
      break;
  }
}

/// Where in x the two packs of column i of y begin.
template <int V>
__device__ __forceinline__ void places(const Form& form, i64 i, i64& a, i64& b) {
  if (form.interleaved) {
    a = 2 * i, b = 2 * i + V;
    return;
  }
  i64 row, column;
  form.rows(i, row, column);
  a = 2 * row * form.rows.width + column, b = a + form.rows.width;
}

struct Apply {
  static constexpr int unroll = 2;
  Form form;
  const bf16* x;
  bf16* y;
  template <int V>
  using Piece = Halves<V>;
  template <int V>
  __device__ Halves<V> load(i64 i) const {
    i64 a, b;
    places<V>(form, i, a, b);
    return {cuda::load<V>(x + a), cuda::load<V>(x + b)};
  }
  template <int V>
  __device__ void store(i64 i, const Halves<V>& h) const {
    float v[V];
    if (form.activation == Activation::situ) {
      const float both = form.beta * form.linear_beta;
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = situ_product(gate_at<V>(h, form.interleaved, j), up_at<V>(h, form.interleaved, j), both, form.inverse, form.linear_inverse);
    } else {
      evaluate<V>(form, h, [&](int j, Dual gate, Dual up) { v[j] = gate.value * up.value; });
    }
    cuda::store<V>(y + i, v);
  }
};

template <int V>
struct WithGradient {
  Halves<V> x;
  Pack<bf16, V> dy;
};
struct Derive {
  static constexpr int unroll = 2;
  Form form;
  const bf16 *x, *dy;
  bf16* dx;
  template <int V>
  using Piece = WithGradient<V>;
  template <int V>
  __device__ WithGradient<V> load(i64 i) const {
    i64 a, b;
    places<V>(form, i, a, b);
    return {{cuda::load<V>(x + a), cuda::load<V>(x + b)}, cuda::load<V>(dy + i)};
  }
  template <int V>
  __device__ void store(i64 i, const WithGradient<V>& p) const {
    i64 a, b;
    places<V>(form, i, a, b);
    float dg[V], du[V];
    evaluate<V>(form, p.x, [&](int j, Dual gate, Dual up) {
      dg[j] = p.dy[j] * gate.slope * up.value;
      du[j] = p.dy[j] * gate.value * up.slope;
    });
    if (!form.interleaved) {
      cuda::store<V>(dx + a, dg), cuda::store<V>(dx + b, du);
      return;
    }
    float first[V], second[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      first[j] = j % 2 == 0 ? dg[j / 2] : du[j / 2];
      second[j] = (V + j) % 2 == 0 ? dg[(V + j) / 2] : du[(V + j) / 2];
    }
    cuda::store<V>(dx + a, first), cuda::store<V>(dx + b, second);
  }
};

Form form_of(const op::Glu& op) {
  return {op.activation, op.interleaved, static_cast<float>(op.beta), static_cast<float>(op.linear_beta), static_cast<float>(op.alpha),
          static_cast<float>(op.limit), static_cast<float>(op.up_offset), static_cast<float>(1 / op.beta), static_cast<float>(1 / op.linear_beta),
          RowOf::of(op.intermediate, op.tokens * op.intermediate)};
}

}  // namespace

void forward(const op::Glu& op, const Frame& f) {
  const Apply a{form_of(op), f["x"].as<bf16>(), f["y"].as<bf16>()};
  pointwise(op.tokens * op.intermediate, op.intermediate % 8 == 0 && aligned({a.x, a.y}), a, f.stream(), "glu forward");
}

void backward(const op::Glu& op, const Frame& f) {
  const Derive d{form_of(op), f["x"].as<bf16>(), f.d("y").as<bf16>(), f.d("x").as<bf16>()};
  if (d.dx) pointwise(op.tokens * op.intermediate, op.intermediate % 8 == 0 && aligned({d.x, d.dy, d.dx}), d, f.stream(), "glu backward");
}

MOEPLAN_CUDA_TAKES_ALL(Glu)

}  // namespace moeplan::cuda
