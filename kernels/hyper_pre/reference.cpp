/// n = X r with r = (mean X^2 + eps)^-1/2,  raw = fn n,  z = raw * scale + base, cut into pre, post, mix;  y = sum_j sigmoid(z_pre)_j X_j,
/// post = 2 sigmoid(z_post),  mixing = rows, then columns, of exp(z_mix) normalised `sinkhorn_steps` times.
/// Backward: through each of these to dz;  dbase = dz,  dscale = dz . raw,  dfn = (dz scale)^T n,  dn = (dz scale) fn,
/// dX_j = sigmoid(z_pre)_j dy + r (dn - X r^2 mean(X dn)). A normalisation p_j = e_j / sum e has de = (dp - p . dp) / sum e.

#include "kernels/hyper_pre/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {
namespace {

/// Coefficients of one token: z, and which of the three scales each has.
template <class T>
class Coefficients {
 public:
  Coefficients(const op::HyperPre& op, const Frame<T>& f, std::int64_t t) : op_(op), f_(f), raw_(f["raw"].row(t)) {}
  [[nodiscard]] std::int64_t part(std::int64_t i) const { return std::min<std::int64_t>(i / op_.streams, 2); }
  [[nodiscard]] T scale(std::int64_t i) const { return op_.affine ? f_["scale"][part(i)] : T(1); }
  [[nodiscard]] T z(std::int64_t i) const { return raw_[i] * scale(i) + (op_.affine ? f_["base"][i] : T(0)); }
  [[nodiscard]] T raw(std::int64_t i) const { return raw_[i]; }

 private:
  const op::HyperPre& op_;
  const Frame<T>& f_;
  const T* raw_;
};

template <class T>
void normalise(Matrix<T>& m, bool rows) {
  for (Eigen::Index i = 0; i < m.rows(); ++i) {
    if (rows) m.row(i) /= m.row(i).sum();
    else m.col(i) /= m.col(i).sum();
  }
}

/// The matrices before each normalisation, and the result last.
template <class T>
std::vector<Matrix<T>> sinkhorn(const op::HyperPre& op, const Coefficients<T>& coefficients) {
  const std::int64_t m = op.streams;
  Matrix<T> mixing(m, m);
  for (std::int64_t i = 0; i < m * m; ++i) mixing.data()[i] = std::exp(coefficients.z(2 * m + i));
  std::vector<Matrix<T>> all{mixing};
  for (std::int64_t step = 0; step < 2 * op.sinkhorn_steps; ++step) {
    normalise(mixing, step % 2 == 0);
    all.push_back(mixing);
  }
  return all;
}

/// Gradient of z_mix from that of the mixing.
template <class T>
Matrix<T> sinkhorn_backward(const std::vector<Matrix<T>>& all, Matrix<T> d) {
  for (std::size_t step = all.size() - 1; step > 0; --step) {
    const Matrix<T>&before = all[step - 1], &after = all[step];
    for (Eigen::Index i = 0; i < d.rows(); ++i) {
      if (step % 2 == 1) d.row(i) = ((d.row(i).array() - d.row(i).dot(after.row(i))) / before.row(i).sum()).matrix().eval();
      else d.col(i) = ((d.col(i).array() - d.col(i).dot(after.col(i))) / before.col(i).sum()).matrix().eval();
    }
  }
  return (d.array() * all.front().array()).matrix();
}

template <class T>
void mean_forward(const op::HyperPre& op, const Frame<T>& f) {
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t c = 0; c < op.hidden; ++c) {
      T sum = 0;
      for (std::int64_t j = 0; j < op.streams; ++j) sum += f["streams"](t, j * op.hidden + c);
      f["y"](t, c) = sum / static_cast<T>(op.streams);
    }
}

template <class T>
void mean_backward(const op::HyperPre& op, const Frame<T>& f) {
  const auto dx = f.d("streams");
  if (!dx) return;
  for (std::int64_t t = 0; t < op.tokens; ++t)
    for (std::int64_t c = 0; c < op.streams * op.hidden; ++c) dx(t, c) = f.d("y")(t, c % op.hidden) / static_cast<T>(op.streams);
}

}  // namespace

template <class T>
void forward(const op::HyperPre& op, const Frame<T>& f) {
  if (op.form == op::HyperForm::mean) return mean_forward(op, f);
  const auto x = f["streams"], fn = f["fn"], y = f["y"], raw = f["raw"], inverse_rms = f["inverse_rms"];
  const std::int64_t m = op.streams, width = m * op.hidden;
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    T squares = 0;
    for (std::int64_t c = 0; c < width; ++c) squares += x(t, c) * x(t, c);
    inverse_rms[t] = 1 / std::sqrt(squares / static_cast<T>(width) + static_cast<T>(op.epsilon));
    for (std::int64_t i = 0; i < op.coefficients(); ++i) {
      raw(t, i) = 0;
      for (std::int64_t c = 0; c < width; ++c) raw(t, i) += fn(i, c) * x(t, c) * inverse_rms[t];
    }
    const Coefficients<T> coefficients(op, f, t);
    for (std::int64_t c = 0; c < op.hidden; ++c) {
      y(t, c) = 0;
      for (std::int64_t j = 0; j < m; ++j) y(t, c) += sigmoid(coefficients.z(j)) * x(t, j * op.hidden + c);
    }
    for (std::int64_t j = 0; op.form != op::HyperForm::head && j < m; ++j) f["post"](t, j) = 2 * sigmoid(coefficients.z(m + j));
    if (op.form == op::HyperForm::mhc) {
      const Matrix<T> mixing = sinkhorn(op, coefficients).back();
      std::copy_n(mixing.data(), m * m, f["mixing"].row(t));
    }
  }
}

template <class T>
void backward(const op::HyperPre& op, const Frame<T>& f) {
  if (op.form == op::HyperForm::mean) return mean_backward(op, f);
  const auto x = f["streams"], inverse_rms = f["inverse_rms"], dy = f.d("y"), dpost = f.d("post"), dmixing = f.d("mixing");
  const auto dx = f.d("streams"), dfn = f.d("fn"), dbase = f.d("base"), dscale = f.d("scale");
  for (const auto& gradient : {dx, dfn, dbase, dscale})
    if (gradient) gradient.fill(0);
  const std::int64_t m = op.streams, width = m * op.hidden;
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    const Coefficients<T> coefficients(op, f, t);
    std::vector<T> dz(static_cast<std::size_t>(op.coefficients()));
    for (std::int64_t j = 0; j < m; ++j) {
      const auto pre = sigmoid_dual(coefficients.z(j));
      for (std::int64_t c = 0; c < op.hidden; ++c) {
        dz[static_cast<std::size_t>(j)] += pre.slope * dy(t, c) * x(t, j * op.hidden + c);
        if (dx) dx(t, j * op.hidden + c) = pre.value * dy(t, c);
      }
      if (dpost) dz[static_cast<std::size_t>(m + j)] = 2 * sigmoid_dual(coefficients.z(m + j)).slope * dpost(t, j);
    }
    if (dmixing) {
      const Matrix<T> d = sinkhorn_backward<T>(sinkhorn(op, coefficients), Eigen::Map<const Matrix<T>>(dmixing.row(t), m, m));
      for (std::int64_t i = 0; i < m * m; ++i) dz[static_cast<std::size_t>(2 * m + i)] = d.data()[i];
    }
    const T r = inverse_rms[t];
    std::vector<T> dn(static_cast<std::size_t>(width));
    for (std::int64_t i = 0; i < op.coefficients(); ++i) {
      const T d = dz[static_cast<std::size_t>(i)];
      if (dbase) dbase[i] += d;
      if (dscale) dscale[coefficients.part(i)] += d * coefficients.raw(i);
      for (std::int64_t c = 0; c < width; ++c) {
        if (dfn) dfn(i, c) += d * coefficients.scale(i) * x(t, c) * r;
        if (dx) dn[static_cast<std::size_t>(c)] += d * coefficients.scale(i) * f["fn"](i, c);
      }
    }
    if (!dx) continue;
    T mean = 0;
    for (std::int64_t c = 0; c < width; ++c) mean += x(t, c) * dn[static_cast<std::size_t>(c)] / static_cast<T>(width);
    for (std::int64_t c = 0; c < width; ++c) dx(t, c) += r * (dn[static_cast<std::size_t>(c)] - x(t, c) * r * r * mean);
  }
}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(HyperPre)
