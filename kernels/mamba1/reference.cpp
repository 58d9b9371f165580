/// Token by token for each channel:  a_n = e^(-e^A_log_n dt),  h_n = a_n h_n + dt B_n x,  y = sum_n C_n h_n + D x,  dt = softplus(raw).
/// Backward with dh the gradient of the state after each token:  dh_n += C_n dy,  dC_n = h_n dy,  dx = D dy + dt sum dh_n B_n,
/// dB_n = dt dh_n x,  da_n = dh_n h_before_n,  ddt = sum (dh_n B_n x - da_n a_n e^A_log_n),  dh_n of the token before = a_n dh_n.

#include "kernels/mamba1/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {
namespace {

/// States [token, state] of one channel, the first row before the first token; writes y if it is there.
template <class T>
Matrix<T> states(const op::Mamba1& op, const Frame<T>& f, std::int64_t channel, std::int64_t begin, std::int64_t end, const View<T>& y) {
  Matrix<T> h = Matrix<T>::Zero(end - begin + 1, op.state);
  for (std::int64_t t = begin; t < end; ++t) {
    const T dt = softplus(f["dt"](t, channel)), x = f["x"](t, channel);
    T out = f["d"][channel] * x;
    for (std::int64_t n = 0; n < op.state; ++n) {
      h(t - begin + 1, n) = std::exp(-std::exp(f["a_log"](channel, n)) * dt) * h(t - begin, n) + dt * f["b"](t, n) * x;
      out += f["c"](t, n) * h(t - begin + 1, n);
    }
    if (y) y(t, channel) = out;
  }
  return h;
}

template <class T>
void channel_backward(const op::Mamba1& op, const Frame<T>& f, std::int64_t channel, std::int64_t begin, std::int64_t end) {
  const auto h = states(op, f, channel, begin, end, {});
  const auto dx = f.d("x"), draw = f.d("dt"), db = f.d("b"), dc = f.d("c"), da_log = f.d("a_log"), dd = f.d("d");
  std::vector<T> dh(static_cast<std::size_t>(op.state));
  for (std::int64_t t = end - 1; t >= begin; --t) {
    const T dt = softplus(f["dt"](t, channel)), x = f["x"](t, channel), dy = f.d("y")(t, channel);
    T ddt = 0, along = 0;
    for (std::int64_t n = 0; n < op.state; ++n) {
      T& g = dh[static_cast<std::size_t>(n)];
      const T rate = std::exp(f["a_log"](channel, n)), a = std::exp(-rate * dt), b = f["b"](t, n);
      if (dc) dc(t, n) += h(t - begin + 1, n) * dy;
      g += f["c"](t, n) * dy;
      along += g * b;
      if (db) db(t, n) += dt * g * x;
      const T da = g * h(t - begin, n);
      ddt += g * b * x - da * a * rate;
      if (da_log) da_log(channel, n) -= da * a * rate * dt;
      g *= a;
    }
    if (dx) dx(t, channel) = f["d"][channel] * dy + dt * along;
    if (dd) dd[channel] += dy * x;
    if (draw) draw(t, channel) = ddt * sigmoid(f["dt"](t, channel));
  }
}

}  // namespace

template <class T>
void forward(const op::Mamba1& op, const Frame<T>& f) {
  const auto bounds = sequence_bounds<T>(op.tokens, op.sequence_length, f["starts"]);
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
    for (std::int64_t c = 0; c < op.inner; ++c) states(op, f, c, bounds[s], bounds[s + 1], f["y"]);
}

template <class T>
void backward(const op::Mamba1& op, const Frame<T>& f) {
  for (const auto& gradient : {f.d("b"), f.d("c"), f.d("a_log"), f.d("d")})
    if (gradient) gradient.fill(0);
  const auto bounds = sequence_bounds<T>(op.tokens, op.sequence_length, f["starts"]);
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
    for (std::int64_t c = 0; c < op.inner; ++c) channel_backward(op, f, c, bounds[s], bounds[s + 1]);
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Mamba1)
