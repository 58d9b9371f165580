#pragma once
/// Grouped linear layers in plain loops (float and double): the definition the kernels are held to.
///
/// Slots are sorted by expert, `offsets[e]` to `offsets[e + 1]` are expert e's. With slot s of expert e and row
/// r = gather[s] (or s), weight W [out, in], adapter A [rank, in], B [out, rank] of scale lambda:
///
///     y_s  = c_s (W x_r + bias + lambda B (A x_r))          c: row_scale, or 1
///     dx_s = c_s (W^T dy_r + lambda A^T (B^T dy_r))
///     dW   = sum_s c_s dy_s x_r^T
///     dA   = lambda sum_s c_s (B^T dy_s) x_r^T,   dB = lambda sum_s c_s dy_s (A x_r)^T
///
/// Shared adapters have one A and B for all experts, and their gradients sum over experts.

#include "kernels/grouped_linear/activation.hpp"
#include "kernels/grouped_linear/dims.hpp"

#include <span>

namespace moeplan::kernels::grouped_linear::reference {

/// A low-rank adapter; rank 0 means none.
template <typename T>
struct Adapter {
    int rank = 0;
    T scale = 1;
    bool shared = false;  ///< one pair for all experts
    std::span<const T> a; ///< [experts or 1, rank, in]
    std::span<const T> b; ///< [experts or 1, out, rank]
};

/// What all passes read. Empty spans are absent operands.
template <typename T>
struct Layer {
    Dims dims;
    std::span<const int> offsets;  ///< [experts + 1]
    std::span<const int> gather;   ///< [rows]
    std::span<const T> weight;     ///< [experts, out, in]
    std::span<const T> bias;       ///< [experts, out]
    std::span<const T> row_scale;  ///< [rows]
    Adapter<T> adapter;
};

/// y [rows, out] from x [*, in]. Slots past the last offset are not written (in any pass).
template <typename T>
void forward(const Layer<T>& layer, std::span<const T> x, std::span<T> y);

/// dx [rows, in], one row per slot, from dy [*, out]; `gather` selects rows of dy.
template <typename T>
void input_gradient(const Layer<T>& layer, std::span<const T> dy, std::span<T> dx);

/// Gradients of what is trained, from x [*, in] (rows by `gather`) and dy [rows, out]; empty spans are skipped.
/// Experts without slots get zeros.
template <typename T>
struct WeightGradients {
    std::span<T> dweight; ///< [experts, out, in]
    std::span<T> dbias;   ///< [experts, out]
    std::span<T> da;      ///< as Adapter::a
    std::span<T> db;      ///< as Adapter::b
};
template <typename T>
void weight_gradients(const Layer<T>& layer, std::span<const T> x, std::span<const T> dy,
                      const WeightGradients<T>& gradients);

/// y [rows, i] = activation of pre [rows, 2 i] (halves), and dpre from dy.
template <typename T>
void activate(GatedActivation kind, int rows, int width, std::span<const T> pre, std::span<T> y);
template <typename T>
void activate_gradient(GatedActivation kind, int rows, int width, std::span<const T> pre, std::span<const T> dy,
                       std::span<T> dpre);

} // namespace moeplan::kernels::grouped_linear::reference
