#pragma once
/// Scalar functions with their derivatives, and matrix views for products, as the references use them.

#include <Eigen/Core>
#include <cmath>
#include <numbers>

#include "kernels/gated_rms_norm/op.hpp"
#include "kernels/reference_frame.hpp"

namespace moeplan::reference {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A tensor as a matrix of `rows` rows (all dimensions but the last together by default).
template <class T>
[[nodiscard]] Eigen::Map<Matrix<T>> matrix(const View<T>& v) {
  const std::int64_t columns = v.columns();
  return {v.data, columns ? v.size() / columns : 0, columns};
}
template <class T>
[[nodiscard]] Eigen::Map<Eigen::Matrix<T, 1, Eigen::Dynamic>> row_vector(const View<T>& v) { return {v.data, v.size()}; }

/// A function's value and its derivative.
template <class T>
struct Dual {
  T value, slope;
};

template <class T>
[[nodiscard]] T sigmoid(T x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
/// log(1 + e^x) without overflow.
template <class T>
[[nodiscard]] T softplus(T x) { return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x))); }
template <class T>
[[nodiscard]] Dual<T> sigmoid_dual(T x) { const T s = sigmoid(x); return {s, s * (1 - s)}; }
template <class T>
[[nodiscard]] Dual<T> silu_dual(T x) { const T s = sigmoid(x); return {x * s, s * (1 + x * (1 - s))}; }
/// The exact form, x Phi(x).
template <class T>
[[nodiscard]] Dual<T> gelu_dual(T x) {
  const T phi = (1 + std::erf(x / std::numbers::sqrt2_v<T>)) / 2;
  return {x * phi, phi + x * std::exp(-x * x / 2) * std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>};
}
template <class T>
[[nodiscard]] Dual<T> relu2_dual(T x) { return x > 0 ? Dual<T>{x * x, 2 * x} : Dual<T>{0, 0}; }
template <class T>
[[nodiscard]] Dual<T> tanh_dual(T x) { const T t = std::tanh(x); return {t, 1 - t * t}; }

template <class T>
[[nodiscard]] Dual<T> gate_dual(op::GateFunction f, T x) {
  switch (f) {
    case op::GateFunction::sigmoid: return sigmoid_dual(x);
    case op::GateFunction::silu: return silu_dual(x);
    case op::GateFunction::identity: break;
  }
  return {x, 1};
}

}  // namespace moeplan::reference
