/// Token by token for each head, H is [state, head_dim]:  a = e^(-e^A_log dt),  H = a H + dt B x^T,  y = H^T C + D x,
/// dt = softplus(raw + dt_bias). Backward with dH the gradient of the state after each token:
///   dH += C dy^T,  dC = H dy,  dx = D dy + dt dH^T B,  dB = dt dH x,  da = sum dH H_before,
///   ddt = sum dH (B x^T) - da a e^A_log,  dA_log = -da a e^A_log dt,  dH of the token before = a dH.

#include "kernels/mamba2/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {
namespace {

template <class T>
T step_of(const Frame<T>& f, std::int64_t t, std::int64_t head) { return softplus(f["dt"](t, head) + f["dt_bias"][head]); }

/// The states of one head before the first token and after each of [begin, end); writes y if it is there.
template <class T>
std::vector<Matrix<T>> states(const op::Mamba2& op, const Frame<T>& f, std::int64_t head, std::int64_t begin, std::int64_t end, const View<T>& y) {
  const std::int64_t group = head / (op.heads / op.groups), p = op.head_dim, n = op.state;
  std::vector<Matrix<T>> all(1, Matrix<T>::Zero(n, p));
  for (std::int64_t t = begin; t < end; ++t) {
    const T dt = step_of(f, t, head), a = std::exp(-std::exp(f["a_log"][head]) * dt);
    const T *x = f["x"].row(t) + head * p, *b = f["b"].row(t) + group * n, *c = f["c"].row(t) + group * n;
    Matrix<T> h = a * all.back();
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < p; ++j) h(i, j) += dt * b[i] * x[j];
    for (std::int64_t j = 0; y && j < p; ++j) {
      T out = f["d"][head] * x[j];
      for (std::int64_t i = 0; i < n; ++i) out += h(i, j) * c[i];
      y.row(t)[head * p + j] = out;
    }
    all.push_back(std::move(h));
  }
  return all;
}

template <class T>
void head_backward(const op::Mamba2& op, const Frame<T>& f, std::int64_t head, std::int64_t begin, std::int64_t end) {
  const std::int64_t group = head / (op.heads / op.groups), p = op.head_dim, n = op.state;
  const auto all = states(op, f, head, begin, end, {});
  const auto dx = f.d("x"), db = f.d("b"), dc = f.d("c"), draw = f.d("dt"), da_log = f.d("a_log"), dbias = f.d("dt_bias"), dd = f.d("d");
  Matrix<T> dh = Matrix<T>::Zero(n, p);
  for (std::int64_t t = end - 1; t >= begin; --t) {
    const Matrix<T>&h = all[static_cast<std::size_t>(t - begin) + 1], &before = all[static_cast<std::size_t>(t - begin)];
    const T dt = step_of(f, t, head), rate = std::exp(f["a_log"][head]), a = std::exp(-rate * dt);
    const T *x = f["x"].row(t) + head * p, *b = f["b"].row(t) + group * n, *c = f["c"].row(t) + group * n, *dy = f.d("y").row(t) + head * p;
    T ddt = 0, da = 0;
    for (std::int64_t j = 0; j < p; ++j) {
      if (dd) dd[head] += dy[j] * x[j];
      if (dx) dx.row(t)[head * p + j] = f["d"][head] * dy[j];
    }
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < p; ++j) {
        if (dc) dc.row(t)[group * n + i] += h(i, j) * dy[j];
        dh(i, j) += c[i] * dy[j];
        if (dx) dx.row(t)[head * p + j] += dt * dh(i, j) * b[i];
        if (db) db.row(t)[group * n + i] += dt * dh(i, j) * x[j];
        ddt += dh(i, j) * b[i] * x[j];
        da += dh(i, j) * before(i, j);
      }
    ddt -= da * a * rate;
    if (da_log) da_log[head] -= da * a * rate * dt;
    const T raw = ddt * sigmoid(f["dt"](t, head) + f["dt_bias"][head]);
    if (draw) draw(t, head) = raw;
    if (dbias) dbias[head] += raw;
    dh *= a;
  }
}

}  // namespace

template <class T>
void forward(const op::Mamba2& op, const Frame<T>& f) {
  const auto bounds = sequence_bounds<T>(op.tokens, op.sequence_length, f["starts"]);
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
    for (std::int64_t head = 0; head < op.heads; ++head) states(op, f, head, bounds[s], bounds[s + 1], f["y"]);
}

template <class T>
void backward(const op::Mamba2& op, const Frame<T>& f) {
  for (const auto& gradient : {f.d("b"), f.d("c"), f.d("a_log"), f.d("dt_bias"), f.d("d")})
    if (gradient) gradient.fill(0);
  const auto bounds = sequence_bounds<T>(op.tokens, op.sequence_length, f["starts"]);
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
    for (std::int64_t head = 0; head < op.heads; ++head) head_backward(op, f, head, bounds[s], bounds[s + 1]);
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(Mamba2)
