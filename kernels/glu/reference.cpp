/// y = f(g) h(u) with x = [g | u];  dg = dy f'(g) h(u),  du = dy f(g) h'(u).

#include <algorithm>

#include "kernels/glu/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {
namespace {

template <class T>
Dual<T> gate_part(const op::Glu& op, T g) {
  switch (op.activation) {
    case Activation::silu: return silu_dual(g);
    case Activation::gelu: return gelu_dual(g);
    case Activation::relu2: return relu2_dual(g);
    case Activation::situ: {   // beta tanh(g / beta) sigmoid(g)
      const T beta = static_cast<T>(op.beta);
      const auto t = tanh_dual(g / beta), s = sigmoid_dual(g);
      return {beta * t.value * s.value, t.slope * s.value + beta * t.value * s.slope};
    }
    case Activation::clamped_swiglu: {   // g' sigmoid(alpha g') with g' = min(g, limit)
      const T alpha = static_cast<T>(op.alpha), limit = static_cast<T>(op.limit), clamped = std::min(g, limit);
      const auto s = sigmoid_dual(alpha * clamped);
      return {clamped * s.value, g > limit ? T(0) : s.value + clamped * alpha * s.slope};
    }
  }
  return {0, 0};
}

template <class T>
Dual<T> up_part(const op::Glu& op, T u) {
  if (op.activation == Activation::situ) {   // lambda tanh(u / lambda)
    const T lambda = static_cast<T>(op.linear_beta);
    const auto t = tanh_dual(u / lambda);
    return {lambda * t.value, t.slope};
  }
  if (op.activation == Activation::clamped_swiglu) {   // clamp(u) + offset
    const T limit = static_cast<T>(op.limit);
    return {std::clamp(u, -limit, limit) + static_cast<T>(op.up_offset), std::abs(u) > limit ? T(0) : T(1)};
  }
  return {u, 1};
}

}  // namespace

template <class T>
void forward(const op::Glu& op, const Frame<T>& f) {
  const auto x = f["x"], y = f["y"];
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t c = 0; c < op.intermediate; ++c) {
      const std::int64_t g = op.interleaved ? 2 * c : c, u = op.interleaved ? 2 * c + 1 : op.intermediate + c;
      y(t, c) = gate_part(op, x(t, g)).value * up_part(op, x(t, u)).value;
    }
}

template <class T>
void backward(const op::Glu& op, const Frame<T>& f) {
  const auto x = f["x"], dy = f.d("y"), dx = f.d("x");
  if (!dx) return;
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t c = 0; c < op.intermediate; ++c) {
      const std::int64_t g = op.interleaved ? 2 * c : c, u = op.interleaved ? 2 * c + 1 : op.intermediate + c;
      const auto gate = gate_part(op, x(t, g)), up = up_part(op, x(t, u));
      dx(t, g) = dy(t, c) * gate.slope * up.value;
      dx(t, u) = dy(t, c) * gate.value * up.slope;
    }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Glu)
