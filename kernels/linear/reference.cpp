/// y = x W^T + b + s (x A^T) B^T;  dx = dy W + s (dy B) A,  dW = dy^T x,  db = sum dy,  dB = s dy^T (x A^T),  dA = s (dy B)^T x.

#include "kernels/linear/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::Linear& op, const Frame<T>& f) {
  const auto x = matrix(f["x"]);
  auto y = matrix(f["y"]);
  y.noalias() = x * matrix(f["w"]).transpose();
  if (op.bias) y.rowwise() += row_vector(f["b"]);
  if (op.lora_rank) {
    auto x_a = matrix(f["x_a"]);
    x_a.noalias() = x * matrix(f["a"]).transpose();
    y += T(op.lora_scale) * x_a * matrix(f["b_lora"]).transpose();
  }
}

template <class T>
void backward(const op::Linear& op, const Frame<T>& f) {
  const auto dy = matrix(f.d("y"));
  const T s = static_cast<T>(op.lora_scale);
  if (f.d("x")) {
    matrix(f.d("x")).noalias() = dy * matrix(f["w"]);
    if (op.lora_rank) matrix(f.d("x")) += s * (dy * matrix(f["b_lora"])) * matrix(f["a"]);
  }
  if (f.d("w")) matrix(f.d("w")).noalias() = dy.transpose() * matrix(f["x"]);
  if (f.d("b")) row_vector(f.d("b")) = dy.colwise().sum();
  if (f.d("a")) matrix(f.d("a")) = s * (dy * matrix(f["b_lora"])).transpose() * matrix(f["x"]);
  if (f.d("b_lora")) matrix(f.d("b_lora")) = s * dy.transpose() * matrix(f["x_a"]);
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Linear)
