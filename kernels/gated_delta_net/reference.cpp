/// The recurrence, token by token; S is [d_k, d_v], q^ and k^ are L2-normalised (q^ also times d_k^-1/2):
///   S- = e^g S,  u = beta (v - S-^T k^),  S = S- + k^ u^T,  y = S^T q^,  g = -e^A_log softplus(a + dt_bias)
/// Backward with dS the gradient of the state after each token:
///   dS += q^ dy^T,  dq^ = S dy,  du = dS^T k^,  dk^ = dS u - beta S- du,  dv = beta du,  dbeta = du . (v - S-^T k^),
///   dS- = dS - beta k^ du^T,  dg = sum dS- S-,  dS of the token before = e^g dS-.

#include "kernels/gated_delta_net/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {
namespace {

/// x / sqrt(sum x^2 + 1e-6) and its gradient.
template <class T>
struct Normalised {
  std::vector<T> x;
  T inverse;
  Normalised(const T* from, std::int64_t n, T scale) {
    T squares = T(1e-6);
    for (std::int64_t c = 0; c < n; ++c) squares += from[c] * from[c];
    inverse = 1 / std::sqrt(squares);
    for (std::int64_t c = 0; c < n; ++c) x.push_back(from[c] * inverse * scale);
  }
  /// Adds to `to` what the gradient of the normalised vector means for the raw one.
  void backward(const std::vector<T>& dx, const T* from, T scale, T* to) const {
    T along = 0;
    for (std::size_t c = 0; c < x.size(); ++c) along += dx[c] * from[c];
    for (std::size_t c = 0; c < x.size(); ++c) to[c] += scale * (inverse * dx[c] - inverse * inverse * inverse * from[c] * along);
  }
};

/// One value head of one sequence.
template <class T>
class Recurrence {
 public:
  Recurrence(const op::GatedDeltaNet& op, const Frame<T>& f, std::int64_t head)
      : op_(op), f_(f), head_(head), key_head_(head / (op.v_heads / op.k_heads)), scale_(1 / std::sqrt(static_cast<T>(op.d_k))) {}

  /// Runs tokens [begin, end) from a zero state and remembers each state; writes y if it is there.
  void forward(std::int64_t begin, std::int64_t end, const View<T>& y) {
    states_.assign(1, Matrix<T>::Zero(op_.d_k, op_.d_v));
    for (std::int64_t t = begin; t < end; ++t) {
      Matrix<T> s = std::exp(gate(t)) * states_.back();
      const auto k = key(t);
      for (std::int64_t j = 0; j < op_.d_v; ++j) {
        const T u = beta(t) * error(t, j, k.x, s);
        for (std::int64_t i = 0; i < op_.d_k; ++i) s(i, j) += k.x[static_cast<std::size_t>(i)] * u;
      }
      if (y) {
        const auto q = query(t);
        for (std::int64_t j = 0; j < op_.d_v; ++j) {
          T out = 0;
          for (std::int64_t i = 0; i < op_.d_k; ++i) out += s(i, j) * q.x[static_cast<std::size_t>(i)];
          y.row(t)[head_ * op_.d_v + j] = out;
        }
      }
      states_.push_back(std::move(s));
    }
  }

  void backward(std::int64_t begin, std::int64_t end) {
    forward(begin, end, {});
    const auto width = static_cast<std::size_t>(op_.d_k);
    Matrix<T> ds = Matrix<T>::Zero(op_.d_k, op_.d_v);
    for (std::int64_t t = end - 1; t >= begin; --t) {
      const Matrix<T>& s = states_[static_cast<std::size_t>(t - begin) + 1];
      const T decay = std::exp(gate(t)), b = beta(t);
      const Matrix<T> before = decay * states_[static_cast<std::size_t>(t - begin)];
      const auto q = query(t), k = key(t);
      const T* dy = f_.d("y").row(t) + head_ * op_.d_v;
      std::vector<T> dq(width), dk(width);
      T dbeta = 0;
      for (std::int64_t j = 0; j < op_.d_v; ++j) {
        const T miss = error(t, j, k.x, before), u = b * miss;
        T du = 0;
        for (std::size_t i = 0; i < width; ++i) {
          const auto row = static_cast<std::int64_t>(i);
          dq[i] += s(row, j) * dy[j];
          ds(row, j) += q.x[i] * dy[j];
          du += ds(row, j) * k.x[i];
        }
        for (std::size_t i = 0; i < width; ++i) {
          const auto row = static_cast<std::int64_t>(i);
          dk[i] += ds(row, j) * u - b * before(row, j) * du;
          ds(row, j) -= b * k.x[i] * du;
        }
        dbeta += du * miss;
        if (const auto dv = f_.d("v")) dv.row(t)[head_ * op_.d_v + j] = b * du;
      }
      const T dg = (ds.array() * before.array()).sum();
      ds *= decay;
      if (const auto d = f_.d("q")) q.backward(dq, f_["q"].row(t) + key_head_ * op_.d_k, scale_, d.row(t) + key_head_ * op_.d_k);
      if (const auto d = f_.d("k")) k.backward(dk, f_["k"].row(t) + key_head_ * op_.d_k, T(1), d.row(t) + key_head_ * op_.d_k);
      if (const auto d = f_.d("beta")) d(t, head_) = dbeta;
      const T dz = -std::exp(f_["a_log"][head_]) * sigmoid(f_["a"](t, head_) + f_["dt_bias"][head_]) * dg;
      if (const auto d = f_.d("a")) d(t, head_) = dz;
      if (const auto d = f_.d("dt_bias")) d[head_] += dz;
      if (const auto d = f_.d("a_log")) d[head_] += dg * gate(t);
    }
  }

 private:
  T gate(std::int64_t t) const { return -std::exp(f_["a_log"][head_]) * softplus(f_["a"](t, head_) + f_["dt_bias"][head_]); }
  T beta(std::int64_t t) const { return f_["beta"](t, head_); }
  Normalised<T> query(std::int64_t t) const { return {f_["q"].row(t) + key_head_ * op_.d_k, op_.d_k, scale_}; }
  Normalised<T> key(std::int64_t t) const { return {f_["k"].row(t) + key_head_ * op_.d_k, op_.d_k, T(1)}; }
  /// v_j - (S-^T k)_j: what the state does not yet say of this value.
  T error(std::int64_t t, std::int64_t j, const std::vector<T>& k, const Matrix<T>& s) const {
    T said = 0;
    for (std::int64_t i = 0; i < op_.d_k; ++i) said += s(i, j) * k[static_cast<std::size_t>(i)];
    return f_["v"].row(t)[head_ * op_.d_v + j] - said;
  }

  const op::GatedDeltaNet& op_;
  const Frame<T>& f_;
  std::int64_t head_, key_head_;
  T scale_;
  std::vector<Matrix<T>> states_;
};

}  // namespace

template <class T>
void forward(const op::GatedDeltaNet& op, const Frame<T>& f) {
  const auto bounds = sequence_bounds<T>(op.tokens, op.sequence_length, f["starts"]);
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
    for (std::int64_t head = 0; head < op.v_heads; ++head) Recurrence<T>(op, f, head).forward(bounds[s], bounds[s + 1], f["y"]);
}

template <class T>
void backward(const op::GatedDeltaNet& op, const Frame<T>& f) {
  for (const auto& gradient : {f.d("q"), f.d("k"), f.d("a_log"), f.d("dt_bias")})
    if (gradient) gradient.fill(0);
  const auto bounds = sequence_bounds<T>(op.tokens, op.sequence_length, f["starts"]);
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s)
    for (std::int64_t head = 0; head < op.v_heads; ++head) Recurrence<T>(op, f, head).backward(bounds[s], bounds[s + 1]);
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(GatedDeltaNet)
