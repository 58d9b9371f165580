/// y = v r w with r = (mean v^2 + eps)^-1/2 and v = x, or x + residual;  dv = r (w dy - v r^2 mean(v w dy)),  dw = sum dy v r.

#include <cmath>

#include "kernels/rms_norm/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
void forward(const op::RmsNorm& op, const Frame<T>& f) {
  const auto x = f["x"], residual = f["residual"], w = f["w"], y = f["y"], sum = f["sum"], inverse_rms = f["inverse_rms"];
  const T offset = op.unit_offset ? 1 : 0;
  for (std::int64_t i = 0; i < op.tokens; ++i) {
    T squares = 0;
    for (std::int64_t c = 0; c < op.hidden; ++c) {
      const T v = op.residual_add ? x(i, c) + residual(i, c) : x(i, c);
      if (op.residual_add) sum(i, c) = v;
      squares += v * v;
    }
    const T r = 1 / std::sqrt(squares / static_cast<T>(op.hidden) + static_cast<T>(op.epsilon));
    inverse_rms[i] = r;
    const auto& v = op.residual_add ? sum : x;
    for (std::int64_t c = 0; c < op.hidden; ++c) y(i, c) = v(i, c) * r * (op.has_weight ? w[c] + offset : T(1));
  }
}

template <class T>
void backward(const op::RmsNorm& op, const Frame<T>& f) {
  const auto v = op.residual_add ? f["sum"] : f["x"];
  const auto w = f["w"], inverse_rms = f["inverse_rms"], dy = f.d("y"), dsum = f.d("sum"), dx = f.d("x"), dresidual = f.d("residual"), dw = f.d("w");
  const T offset = op.unit_offset ? 1 : 0;
  if (dw) dw.fill(0);
  for (std::int64_t i = 0; i < op.tokens; ++i) {
    const T r = inverse_rms[i];
    if (dw)
      for (std::int64_t c = 0; c < op.hidden; ++c) dw[c] += dy(i, c) * v(i, c) * r;
    if (!dx && !dresidual) continue;
    const auto scaled = [&](std::int64_t c) { return dy(i, c) * (op.has_weight ? w[c] + offset : T(1)); };
    T mean = 0;
    for (std::int64_t c = 0; c < op.hidden; ++c) mean += v(i, c) * scaled(c) / static_cast<T>(op.hidden);
    for (std::int64_t c = 0; c < op.hidden; ++c) {
      const T dv = r * (scaled(c) - v(i, c) * r * r * mean) + (dsum ? dsum(i, c) : T(0));
      if (dx) dx(i, c) = dv;
      if (dresidual) dresidual(i, c) = dv;
    }
  }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(RmsNorm)
