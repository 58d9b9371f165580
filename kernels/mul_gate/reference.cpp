/// y_c = x_c f(g_{c / share});  dx_c = dy_c f(g),  dg = f'(g) sum_c dy_c x_c over the columns that share the gate.

#include "kernels/mul_gate/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::MulGate& op, const Frame<T>& f) {
  const auto x = f["x"], gate = f["gate"], y = f["y"];
  const std::int64_t share = op.width / op.gate_width;
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t c = 0; c < op.width; ++c) y(t, c) = x(t, c) * gate_dual(op.function, gate(t, c / share)).value;
}

template <class T>
void backward(const op::MulGate& op, const Frame<T>& f) {
  const auto x = f["x"], gate = f["gate"], dy = f.d("y"), dx = f.d("x"), dgate = f.d("gate");
  const std::int64_t share = op.width / op.gate_width;
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t g = 0; g < op.gate_width; ++g) {
      if (!dx && !dgate) return;
      const auto value = gate_dual(op.function, gate(t, g));
      T sum = 0;
      for (std::int64_t c = g * share; c < (g + 1) * share; ++c) {
        if (dx) dx(t, c) = dy(t, c) * value.value;
        sum += dy(t, c) * x(t, c);
      }
      if (dgate) dgate(t, g) = sum * value.slope;
    }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(MulGate)
