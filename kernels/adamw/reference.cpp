/// step_size = (learning rate, clipping factor, number of this step counted from 1); g is the clipped gradient.
///   adamw      m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  w -= lr (m / (1 - b1^n) / (sqrt(v / (1 - b2^n)) + eps) + decay w)
///   adamw8bit  the same with m and v held as whole numbers: m = (code - 128) / 127 scale, v = code / 255 scale, a scale for each 256
///   muon       m = b1 m + g; each rows x columns matrix of m is orthogonalised by five Newton-Schulz steps (Jordan et al. 2024),
///              w -= lr (0.2 sqrt(max(rows, columns)) update + decay w)

#include <algorithm>
#include <cmath>

#include "kernels/adamw/op.hpp"
#include "kernels/reference_math.hpp"

namespace moeplan::reference {
namespace {

constexpr std::int64_t block = 256;

template <class T>
void adam(const op::AdamW& op, const Frame<T>& f, std::int64_t first, std::int64_t last) {
  const auto gradient = f["gradient"], step = f["step_size"];
  const bool bytes = op.optimizer == OptimizerKind::adamw8bit;
  const T b1 = static_cast<T>(op.beta1), b2 = static_cast<T>(op.beta2), n = step[2];
  std::vector<T> m, v;
  for (std::int64_t i = first; i < last; ++i) {
    const T g = step[1] * gradient[i];
    const T m_before = bytes ? (f["m"][i] - 128) / 127 * f["m_scale"][i / block] : f["m"][i], v_before = bytes ? f["v"][i] / 255 * f["v_scale"][i / block] : f["v"][i];
    m.push_back(b1 * m_before + (1 - b1) * g);
    v.push_back(b2 * v_before + (1 - b2) * g * g);
    const T update = m.back() / (1 - std::pow(b1, n)) / (std::sqrt(v.back() / (1 - std::pow(b2, n))) + static_cast<T>(op.epsilon));
    const T w = f["master"][i] - step[0] * (update + static_cast<T>(op.weight_decay) * f["master"][i]);
    f.written("master")[i] = f.written("weight")[i] = w;
  }
  T m_most = 0, v_most = 0;
  for (std::size_t i = 0; i < m.size(); ++i) m_most = std::max(m_most, std::abs(m[i])), v_most = std::max(v_most, v[i]);
  for (std::size_t i = 0; i < m.size(); ++i) {
    const std::int64_t at = first + static_cast<std::int64_t>(i);
    f.written("m")[at] = bytes ? 128 + (m_most > 0 ? std::round(m[i] / m_most * 127) : T(0)) : m[i];
    f.written("v")[at] = bytes ? (v_most > 0 ? std::round(v[i] / v_most * 255) : T(0)) : v[i];
  }
  if (bytes && !m.empty()) f.written("m_scale")[first / block] = m_most, f.written("v_scale")[first / block] = v_most;
}

template <class T>
Matrix<T> orthogonalised(Matrix<T> x) {
  const bool tall = x.rows() > x.cols();
  if (tall) x = Matrix<T>(x.transpose());
  x /= x.norm() + T(1e-7);
  for (int i = 0; i < 5; ++i) {
    const Matrix<T> gram = x * x.transpose();
    x = Matrix<T>(T(3.4445) * x + (T(-4.7750) * gram + T(2.0315) * gram * gram) * x);
  }
  return tall ? Matrix<T>(x.transpose()) : x;
}

template <class T>
void muon(const op::AdamW& op, const Frame<T>& f) {
  const auto step = f["step_size"];
  const std::int64_t each = op.rows * op.columns;
  for (std::int64_t first = 0; first + each <= op.elements; first += each) {
    Matrix<T> m(op.rows, op.columns);
    for (std::int64_t i = 0; i < each; ++i) m.data()[i] = f.written("m")[first + i] = static_cast<T>(op.beta1) * f["m"][first + i] + step[1] * f["gradient"][first + i];
    const Matrix<T> update = orthogonalised(m);
    const T scale = T(0.2) * std::sqrt(static_cast<T>(std::max(op.rows, op.columns)));
    for (std::int64_t i = 0; i < each; ++i) {
      const T w = f["master"][first + i];
      f.written("master")[first + i] = f.written("weight")[first + i] = w - step[0] * (scale * update.data()[i] + static_cast<T>(op.weight_decay) * w);
    }
  }
}

}  // namespace

template <class T>
void forward(const op::AdamW& op, const Frame<T>& f) {
  if (op.optimizer == OptimizerKind::muon) return muon(op, f);
  for (std::int64_t first = 0; first < op.elements; first += block) adam(op, f, first, std::min(first + block, op.elements));
}

template <class T>
void backward(const op::AdamW&, const Frame<T>&) {}

}  // namespace moeplan::reference

MOEPLAN_INSTANTIATE_REFERENCE(AdamW)
