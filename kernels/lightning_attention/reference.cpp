/// y_i = sum_{j <= i} e^(-slope (i - j)) (q_i . k_j) v_j: the recurrence written out as pairs, each with its decay.
/// With g_ij = e^(-slope (i - j)) dy_i . v_j:  dq_i = sum_j g_ij k_j,  dk_j = sum_i g_ij q_i,  dv_j = sum_i e^(...) (q_i . k_j) dy_i.

#include <cmath>

#include "kernels/lightning_attention/op.hpp"
#include "kernels/reference_attend.hpp"

namespace moeplan::reference {
namespace {

/// Calls f(i, j, first column of the head, decay) for each head and pair of a query and an earlier key.
template <class T, class F>
void for_each_pair(const op::LightningAttention& op, const View<T>& starts, F&& f) {
  const auto bounds = sequence_bounds<T>(op.tokens, op.sequence_length, starts);
  const double total = static_cast<double>(op.total_heads ? op.total_heads : op.heads);
  for (std::int64_t head = 0; head < op.heads; ++head) {
    const double slope = op.decay * std::exp2(-8 * (static_cast<double>(head) + op.first_head + 1) / total);
    for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
      for (std::int64_t i = bounds[s]; i < bounds[s + 1]; ++i)
        for (std::int64_t j = bounds[s]; j <= i; ++j) f(i, j, head * op.head_dim, static_cast<T>(std::exp(-slope * static_cast<double>(i - j))));
  }
}

}  // namespace

template <class T>
void forward(const op::LightningAttention& op, const Frame<T>& f) {
  const auto q = f["q"], k = f["k"], v = f["v"], y = f["y"];
  y.fill(0);
  for_each_pair<T>(op, f["starts"], [&](std::int64_t i, std::int64_t j, std::int64_t at, T decay) {
    const T weight = decay * dot(q.row(i) + at, k.row(j) + at, op.head_dim);
    for (std::int64_t c = at; c < at + op.head_dim; ++c) y(i, c) += weight * v(j, c);
  });
}

template <class T>
void backward(const op::LightningAttention& op, const Frame<T>& f) {
  const auto q = f["q"], k = f["k"], v = f["v"], dy = f.d("y"), dq = f.d("q"), dk = f.d("k"), dv = f.d("v");
  if (!dq) return;
  for (const auto& gradient : {dq, dk, dv}) gradient.fill(0);
  for_each_pair<T>(op, f["starts"], [&](std::int64_t i, std::int64_t j, std::int64_t at, T decay) {
    const T weight = decay * dot(q.row(i) + at, k.row(j) + at, op.head_dim), g = decay * dot(dy.row(i) + at, v.row(j) + at, op.head_dim);
    for (std::int64_t c = at; c < at + op.head_dim; ++c) {
      dq(i, c) += g * k(j, c);
      dk(j, c) += g * q(i, c);
      dv(j, c) += weight * dy(i, c);
    }
  });
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(LightningAttention)
