/// y = n w + b with n = (x - mean) r, r = (var + eps)^-1/2;  dx = r (w dy - mean(w dy) - n mean(n w dy)),  dw = sum dy n,  db = sum dy.

#include <cmath>

#include "kernels/layer_norm/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::LayerNorm& op, const Frame<T>& f) {
  const auto x = f["x"], w = f["w"], b = f["b"], y = f["y"], mean = f["mean"], inverse_std = f["inverse_std"];
  const T h = static_cast<T>(op.hidden);
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    T sum = 0, squares = 0;
    for (std::int64_t c = 0; c < op.hidden; ++c) sum += x(t, c);
    mean[t] = sum / h;
    for (std::int64_t c = 0; c < op.hidden; ++c) squares += (x(t, c) - mean[t]) * (x(t, c) - mean[t]);
    inverse_std[t] = 1 / std::sqrt(squares / h + static_cast<T>(op.epsilon));
    for (std::int64_t c = 0; c < op.hidden; ++c) y(t, c) = (x(t, c) - mean[t]) * inverse_std[t] * w[c] + (op.bias ? b[c] : T(0));
  }
}

template <class T>
void backward(const op::LayerNorm& op, const Frame<T>& f) {
  const auto x = f["x"], w = f["w"], mean = f["mean"], inverse_std = f["inverse_std"], dy = f.d("y"), dx = f.d("x"), dw = f.d("w"), db = f.d("b");
  for (const auto& gradient : {dw, db})
    if (gradient) gradient.fill(0);
  const T h = static_cast<T>(op.hidden);
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    const auto n = [&](std::int64_t c) { return (x(t, c) - mean[t]) * inverse_std[t]; };
    T sum = 0, along = 0;
    for (std::int64_t c = 0; c < op.hidden; ++c) {
      if (dw) dw[c] += dy(t, c) * n(c);
      if (db) db[c] += dy(t, c);
      if (dx) sum += w[c] * dy(t, c) / h, along += n(c) * w[c] * dy(t, c) / h;
    }
    for (std::int64_t c = 0; dx && c < op.hidden; ++c) dx(t, c) = inverse_std[t] * (w[c] * dy(t, c) - sum - n(c) * along);
  }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(LayerNorm)
