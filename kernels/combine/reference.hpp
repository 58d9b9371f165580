#pragma once
/// The weighted sum of a token's expert outputs, in plain loops:
///     out_t = sum_j w_tj y[row_of[t, j]]      (row -1: dropped, contributes nothing)
///     dy[row_of[t, j]] = w_tj dout_t,   dw_tj = <dout_t, y[row_of[t, j]]>   (0 if dropped)
/// Dims and tables: kernels/permute/reference.hpp.

#include "kernels/permute/reference.hpp"

#include <span>

namespace moeplan::kernels::combine::reference {

template <typename T>
void forward(const permute::Dims& dims, int h, std::span<const int> row_of, std::span<const T> weights,
             std::span<const T> y, std::span<T> out);

template <typename T>
void backward(const permute::Dims& dims, int h, std::span<const int> row_of, std::span<const T> weights,
              std::span<const T> y, std::span<const T> dout, std::span<T> dy, std::span<T> dweights);

} // namespace moeplan::kernels::combine::reference
