#pragma once
/// From a routing choice to rows sorted by expert, in plain loops.
///
/// `sort` orders the t k choices by (copy of the expert, token, j). Its tables drive everything after it:
/// `offsets` (rows of each copy), `token_of` (row -> token), `row_of` ((token, j) -> row, -1 if dropped). A choice of -1 goes nowhere.
/// Then  permuted row r = x[token_of[r]]  and backward  dx[t] = sum over j of dpermuted[row_of[t, j]], in the order of j.

#include "kernels/permute/dims.hpp"

#include <span>

namespace moeplan::kernels::permute {

namespace reference {

struct Tables {
    std::span<int> offsets;  ///< [copies + 1]
    std::span<int> token_of; ///< [t k]; entries past offsets[copies] are not written
    std::span<int> row_of;   ///< [t k]
};

/// `first_copy` [experts + 1] maps an expert to its copies first_copy[e] to first_copy[e + 1]; token t goes to copy
/// t mod their number. Empty: one copy each.
void sort(const Dims& dims, std::span<const int> experts, std::span<const int> first_copy, const Tables& tables);

/// Rows of width h.
template <typename T>
void forward(const Dims& dims, int h, std::span<const int> offsets, std::span<const int> token_of,
             std::span<const T> x, std::span<T> permuted);
template <typename T>
void backward(const Dims& dims, int h, std::span<const int> row_of, std::span<const T> dpermuted, std::span<T> dx);

} // namespace reference
} // namespace moeplan::kernels::permute
