/// Norm first: y = x r w f(g);  gate first: y = u r w with u = x f(g). r = (mean v^2 + eps)^-1/2 over each group of v = x or u.
/// With n = dy (times f(g) if the norm is first):  dw = sum n v r,  dv = r (w n - v r^2 mean(v w n)),  and on through v and f(g).

#include "kernels/gated_rms_norm/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::GatedRmsNorm& op, const Frame<T>& f) {
  const auto x = f["x"], gate = f["gate"], w = f["w"], y = f["y"], inverse_rms = f["inverse_rms"];
  const std::int64_t width = op.hidden / op.groups;
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t g = 0; g < op.groups; ++g) {
      const auto gated = [&](std::int64_t c) { return x(t, c) * (op.gate_first ? gate_dual(op.gate, gate(t, c)).value : T(1)); };
      T squares = 0;
      for (std::int64_t c = g * width; c < (g + 1) * width; ++c) squares += gated(c) * gated(c);
      const T r = 1 / std::sqrt(squares / static_cast<T>(width) + static_cast<T>(op.epsilon));
      inverse_rms(t, g) = r;
      for (std::int64_t c = g * width; c < (g + 1) * width; ++c) y(t, c) = gated(c) * r * w[c] * (op.gate_first ? T(1) : gate_dual(op.gate, gate(t, c)).value);
    }
}

template <class T>
void backward(const op::GatedRmsNorm& op, const Frame<T>& f) {
  const auto x = f["x"], gate = f["gate"], w = f["w"], inverse_rms = f["inverse_rms"], dy = f.d("y"), dx = f.d("x"), dgate = f.d("gate"), dw = f.d("w");
  const std::int64_t width = op.hidden / op.groups;
  if (dw) dw.fill(0);
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t g = 0; g < op.groups; ++g) {
      const T r = inverse_rms(t, g);
      const auto normed = [&](std::int64_t c) { return x(t, c) * (op.gate_first ? gate_dual(op.gate, gate(t, c)).value : T(1)); };
      const auto n = [&](std::int64_t c) { return dy(t, c) * (op.gate_first ? T(1) : gate_dual(op.gate, gate(t, c)).value); };
      T mean = 0;
      for (std::int64_t c = g * width; c < (g + 1) * width; ++c) {
        if (dw) dw[c] += n(c) * normed(c) * r;
        if (dx || dgate) mean += normed(c) * w[c] * n(c) / static_cast<T>(width);
      }
      if (!dx && !dgate) continue;
      for (std::int64_t c = g * width; c < (g + 1) * width; ++c) {
        const T dv = r * (w[c] * n(c) - normed(c) * r * r * mean);
        const auto value = gate_dual(op.gate, gate(t, c));
        if (dx) dx(t, c) = op.gate_first ? dv * value.value : dv;
        if (dgate) dgate(t, c) = value.slope * (op.gate_first ? dv * x(t, c) : dy(t, c) * x(t, c) * r * w[c]);
      }
    }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(GatedRmsNorm)
