/// z_t = b + sum_j w_j x_{t - taps + 1 + j}, y = silu(z) or z;  dz = dy silu'(z),  dx_{t - taps + 1 + j} += w_j dz_t,
/// dw_j = sum dz_t x_{t - taps + 1 + j},  db = sum dz_t. Terms before a sequence's start are left out.

#include "kernels/short_conv/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {
namespace {

/// Calls f(token, first token of its sequence).
template <class T, class F>
void for_each_token(const op::ShortConv& op, const View<T>& starts, F&& f) {
  const auto bounds = sequence_bounds<T>(op.tokens, op.sequence_length, starts);
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
    for (std::int64_t t = bounds[s]; t < bounds[s + 1]; ++t) f(t, bounds[s]);
}

template <class T>
T before_silu(const op::ShortConv& op, const View<T>& x, const View<T>& w, const View<T>& b, std::int64_t t, std::int64_t begin, std::int64_t c) {
  T z = op.bias ? b[c] : T(0);
  for (std::int64_t j = 0; j < op.taps; ++j)
    if (const std::int64_t from = t - op.taps + 1 + j; from >= begin) z += w(c, j) * x(from, c);
  return z;
}

}  // namespace

template <class T>
void forward(const op::ShortConv& op, const Frame<T>& f) {
  const auto x = f["x"], w = f["w"], b = f["b"], y = f["y"];
  for_each_token(op, f["starts"], [&](std::int64_t t, std::int64_t begin) {
    for (std::int64_t c = 0; c < op.channels; ++c) {
      const T z = before_silu(op, x, w, b, t, begin, c);
      y(t, c) = op.silu ? silu_dual(z).value : z;
    }
  });
}

template <class T>
void backward(const op::ShortConv& op, const Frame<T>& f) {
  const auto x = f["x"], w = f["w"], b = f["b"], dy = f.d("y"), dx = f.d("x"), dw = f.d("w"), db = f.d("b");
  for (const auto& gradient : {dx, dw, db})
    if (gradient) gradient.fill(0);
  if (!dx && !dw && !db) return;
  for_each_token(op, f["starts"], [&](std::int64_t t, std::int64_t begin) {
    for (std::int64_t c = 0; c < op.channels; ++c) {
      const T dz = op.silu ? dy(t, c) * silu_dual(before_silu(op, x, w, b, t, begin, c)).slope : dy(t, c);
      if (db) db[c] += dz;
      for (std::int64_t j = 0; j < op.taps; ++j) {
        const std::int64_t from = t - op.taps + 1 + j;
        if (from < begin) continue;
        if (dx) dx(from, c) += w(c, j) * dz;
        if (dw) dw(c, j) += dz * x(from, c);
      }
    }
  });
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(ShortConv)
