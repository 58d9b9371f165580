/// For each head with its slice W_h of rows: y = x W_h^T + s (x A^T) B_h^T, or transposed y = x W_h + s (x B_h) A.
/// Rows of W and B outside the slice get a zero gradient.

#include "kernels/head_linear/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::HeadLinear& op, const Frame<T>& f) {
  const auto x = matrix(f["x"]), w = matrix(f["w"]);
  auto y = matrix(f["y"]);
  const std::int64_t from = op.transposed ? op.count : op.in, to = op.transposed ? op.in : op.count, r = op.lora_rank;
  const T s = static_cast<T>(op.lora_scale);
  for (std::int64_t h = 0; h < op.heads; ++h) {
    const auto x_h = x.middleCols(h * from, from);
    const auto w_h = w.middleRows(h * op.block + op.begin, op.count);
    auto y_h = y.middleCols(h * to, to);
    if (op.transposed) y_h = x_h * w_h;
    else y_h = x_h * w_h.transpose();
    if (!r) continue;
    const auto a = matrix(f["a"]);
    const auto b_h = matrix(f["b_lora"]).middleRows(h * op.block + op.begin, op.count);
    auto pair = matrix(f["x_pair"]).middleCols(h * r, r);
    if (op.transposed) pair = x_h * b_h, y_h += s * pair * a;
    else pair = x_h * a.transpose(), y_h += s * pair * b_h.transpose();
  }
}

template <class T>
void backward(const op::HeadLinear& op, const Frame<T>& f) {
  const auto dy = matrix(f.d("y"));
  const auto dx = f.d("x"), dw = f.d("w"), da = f.d("a"), db = f.d("b_lora");
  for (const auto& gradient : {dw, da, db})
    if (gradient) gradient.fill(0);
  const std::int64_t from = op.transposed ? op.count : op.in, to = op.transposed ? op.in : op.count, r = op.lora_rank;
  const T s = static_cast<T>(op.lora_scale);
  for (std::int64_t h = 0; h < op.heads; ++h) {
    const std::int64_t first = h * op.block + op.begin;
    const auto dy_h = dy.middleCols(h * to, to);
    if (dx) {
      auto dx_h = matrix(dx).middleCols(h * from, from);
      const auto w_h = matrix(f["w"]).middleRows(first, op.count);
      if (op.transposed) dx_h = dy_h * w_h.transpose();
      else dx_h = dy_h * w_h;
    }
    if (dw) {
      const auto x_h = matrix(f["x"]).middleCols(h * from, from);
      if (op.transposed) matrix(dw).middleRows(first, op.count) = x_h.transpose() * dy_h;
      else matrix(dw).middleRows(first, op.count) = dy_h.transpose() * x_h;
    }
    if (!r) continue;
    const auto a = matrix(f["a"]);
    const auto b_h = matrix(f["b_lora"]).middleRows(first, op.count);
    const Matrix<T> back = op.transposed ? Matrix<T>(dy_h * a.transpose()) : Matrix<T>(dy_h * b_h);
    if (dx) {
      if (op.transposed) matrix(dx).middleCols(h * from, from) += s * back * b_h.transpose();
      else matrix(dx).middleCols(h * from, from) += s * back * a;
    }
    if (!da) continue;
    const auto x_h = matrix(f["x"]).middleCols(h * from, from);
    const auto pair = matrix(f["x_pair"]).middleCols(h * r, r);
    if (op.transposed) {
      matrix(da) += s * pair.transpose() * dy_h;
      matrix(db).middleRows(first, op.count) = s * x_h.transpose() * back;
    } else {
      matrix(da) += s * back.transpose() * x_h;
      matrix(db).middleRows(first, op.count) = s * dy_h.transpose() * pair;
    }
  }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(HeadLinear)
