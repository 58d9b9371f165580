#pragma once
/// Test data for any operator of the catalogue: random operands of the right shapes, and the plumbing to run a reference forward and
/// backward on them.

#include <algorithm>
#include <vector>

#include "kernels/example_values.hpp"
#include "kernels/reference.hpp"

namespace moeplan::test {

/// Owned operands of one call in precision T.
template <class T>
struct CallData {
  std::vector<std::vector<T>> buffers;
  std::vector<reference::View<T>> views;

  explicit CallData(const Operands& operands, T value = 0) {
    for (const Operand& o : operands) buffers.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(o.shape.elements(), 1)), value);
    for (std::size_t i = 0; i < operands.size(); ++i) views.push_back({buffers[i].data(), operands[i].shape});
  }
  CallData(const CallData&) = delete;
  CallData(CallData&& other) noexcept = default;
};

/// Fills what the operator reads.
inline CallData<double> random_inputs(const Op& op, std::uint64_t seed) {
  const Operands list = operands(op);
  CallData<double> data(list);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto values = example_values<double>(op, list, i, random);
    std::copy(values.begin(), values.end(), data.buffers[i].begin());
  }
  return data;
}

template <class To, class From>
CallData<To> converted(const Operands& list, const CallData<From>& from) {
  CallData<To> to(list);
  for (std::size_t i = 0; i < list.size(); ++i)
    for (std::size_t e = 0; e < from.buffers[i].size(); ++e) to.buffers[i][e] = static_cast<To>(from.buffers[i][e]);
  return to;
}

}  // namespace moeplan::test
