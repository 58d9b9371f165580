/// `grouped_linear` as the catalogue calls it: one product for each expert's rows. Rows past the last expert's are zero.
///   y = x W_e^T + b_e + s (x A^T) B^T;  dx = dy W_e + s (dy B) A,  dW_e = dy^T x,  db_e = sum dy,  dB = s dy^T (x A^T),  dA = s (dy B)^T x.
/// A shared pair's gradients sum over the experts. The other form of the same mathematics, by loops: kernels/grouped_linear/reference.cpp.

#include "kernels/grouped_linear/op.hpp"
#include "kernels/reference_math.hpp"
#include "kernels/reference_ragged.hpp"

namespace moeplan::reference {
namespace {

/// Expert `e` of a stack of matrices, or the only one.
template <class T>
View<T> matrix_of(const View<T>& stack, std::int64_t e) {
  if (!stack) return {};
  const std::int64_t one = stack.shape[1] * stack.shape[2];
  return {stack.data + (stack.shape[0] == 1 ? 0 : e) * one, {stack.shape[1], stack.shape[2]}};
}
template <class T>
View<T> rows_of(const View<T>& v, std::int64_t begin, std::int64_t end) {
  if (!v) return {};
  return {v.row(begin), {end - begin, v.columns()}};
}

template <class Body>
void for_each_expert(const op::GroupedLinear& op, const Ragged& ragged, const Body& body) {
  std::vector<std::int64_t> offsets{0};
  for (std::int64_t e = 0; e < op.experts; ++e)
    offsets.push_back(offsets.back() + (ragged.rows_of_expert.empty() ? op.rows / op.experts + (e < op.rows % op.experts) : ragged.rows_of_expert[static_cast<std::size_t>(e)]));
  for (std::int64_t e = 0; e < op.experts; ++e)
    if (offsets[static_cast<std::size_t>(e)] < offsets[static_cast<std::size_t>(e) + 1]) body(e, offsets[static_cast<std::size_t>(e)], offsets[static_cast<std::size_t>(e) + 1]);
}

}  // namespace

template <class T>
void forward(const op::GroupedLinear& op, const Frame<T>& f, const Ragged& ragged) {
  f["y"].fill(0);
  if (op.lora_rank) f["x_a"].fill(0);
  for_each_expert(op, ragged, [&](std::int64_t e, std::int64_t begin, std::int64_t end) {
    const auto x = matrix(rows_of(f["x"], begin, end));
    auto y = matrix(rows_of(f["y"], begin, end));
    y.noalias() = x * matrix(matrix_of(f["w"], e)).transpose();
    if (op.bias) y.rowwise() += row_vector(View<T>{f["b"].row(e), {op.out}});
    if (!op.lora_rank) return;
    auto x_a = matrix(rows_of(f["x_a"], begin, end));
    x_a.noalias() = x * matrix(matrix_of(f["a"], e)).transpose();
    y += static_cast<T>(op.lora_scale) * x_a * matrix(matrix_of(f["b_lora"], e)).transpose();
  });
}

template <class T>
void backward(const op::GroupedLinear& op, const Frame<T>& f, const Ragged& ragged) {
  const T s = static_cast<T>(op.lora_scale);
  for (const auto& gradient : {f.d("x"), f.d("w"), f.d("b"), f.d("a"), f.d("b_lora")})
    if (gradient) gradient.fill(0);
  for_each_expert(op, ragged, [&](std::int64_t e, std::int64_t begin, std::int64_t end) {
    const auto dy = matrix(rows_of(f.d("y"), begin, end));
    const auto b_lora = matrix_of(f["b_lora"], e), a = matrix_of(f["a"], e);
    if (f.d("x")) {
      auto dx = matrix(rows_of(f.d("x"), begin, end));
      dx.noalias() = dy * matrix(matrix_of(f["w"], e));
      if (op.lora_rank) dx += s * (dy * matrix(b_lora)) * matrix(a);
    }
    if (f.d("w")) matrix(matrix_of(f.d("w"), e)).noalias() = dy.transpose() * matrix(rows_of(f["x"], begin, end));
    if (f.d("b")) row_vector(View<T>{f.d("b").row(e), {op.out}}) = dy.colwise().sum();
    if (f.d("a")) matrix(matrix_of(f.d("a"), e)) += s * (dy * matrix(b_lora)).transpose() * matrix(rows_of(f["x"], begin, end));
    if (f.d("b_lora")) matrix(matrix_of(f.d("b_lora"), e)) += s * dy.transpose() * matrix(rows_of(f["x_a"], begin, end));
  });
}

template <class T>
void forward(const op::GroupedLinear& op, const Frame<T>& f) { forward(op, f, Ragged{}); }
template <class T>
void backward(const op::GroupedLinear& op, const Frame<T>& f) { backward(op, f, Ragged{}); }

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(GroupedLinear)
template void moeplan::reference::forward(const moeplan::op::GroupedLinear&, const moeplan::reference::Frame<float>&, const moeplan::reference::Ragged&);
template void moeplan::reference::forward(const moeplan::op::GroupedLinear&, const moeplan::reference::Frame<double>&, const moeplan::reference::Ragged&);
template void moeplan::reference::backward(const moeplan::op::GroupedLinear&, const moeplan::reference::Frame<float>&, const moeplan::reference::Ragged&);
template void moeplan::reference::backward(const moeplan::op::GroupedLinear&, const moeplan::reference::Frame<double>&, const moeplan::reference::Ragged&);
