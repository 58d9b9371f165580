/// y = f(x);  dx = dy f'(x).

#include "kernels/activation/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {
namespace {

template <class T>
Dual<T> evaluate(op::Function function, T x) {
  switch (function) {
    case op::Function::silu: return silu_dual(x);
    case op::Function::gelu: return gelu_dual(x);
    case op::Function::relu2: return relu2_dual(x);
    case op::Function::sigmoid: return sigmoid_dual(x);
    case op::Function::tanh: return tanh_dual(x);
  }
  return {0, 0};
}

}  // namespace

template <class T>
void forward(const op::Activate& op, const Frame<T>& f) {
  const auto x = f["x"], y = f["y"];
  for (std::int64_t i = 0; i < y.size(); ++i) y[i] = evaluate(op.function, x[i]).value;
}

template <class T>
void backward(const op::Activate& op, const Frame<T>& f) {
  const auto x = f["x"], dy = f.d("y"), dx = f.d("x");
  if (!dx) return;
  for (std::int64_t i = 0; i < dx.size(); ++i) dx[i] = dy[i] * evaluate(op.function, x[i]).slope;
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Activate)
