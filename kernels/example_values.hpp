#pragma once
/// Values that mean something for what an operator reads: reals in (-1, 1), and where the contract says integer, ids, labels, rows and
/// indices as a program would have them. For tests, benchmarks and calibration.

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/catalogue.hpp"

namespace moeplan {

/// The values of operand `i` of `operands(op)`, at least one; the same random state gives the same values. Outputs get zeros.
template <class T>
[[nodiscard]] std::vector<T> example_values(const Op& op, const Operands& list, std::size_t i, std::mt19937_64& random);

extern template std::vector<float> example_values(const Op&, const Operands&, std::size_t, std::mt19937_64&);
extern template std::vector<double> example_values(const Op&, const Operands&, std::size_t, std::mt19937_64&);

}  // namespace moeplan
