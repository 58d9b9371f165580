#pragma once
/// What a CPU reference works on: views of a call's operands, found by name.
///
/// A call gets one view for each operand of the contract, in its order. Forward fills what the contract writes. Backward gets the
/// operands that the contract says it needs, the gradients of the outputs, and a view for each gradient that is wanted, which it
/// overwrites. Views that are absent (not needed, not wanted, no gradient arrived) have no data. Integer operands (ids, indices,
/// boundaries) hold whole numbers in T; quantised weights are read as plain numbers.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/contract.hpp"

namespace moeplan::reference {

template <class T>
struct View {
  T* data = nullptr;
  Shape shape{};

  explicit operator bool() const { return data != nullptr; }
  [[nodiscard]] std::int64_t size() const { return shape.elements(); }
  [[nodiscard]] std::int64_t columns() const { return shape[shape.rank - 1]; }
  [[nodiscard]] T& operator[](std::int64_t i) const { return data[i]; }
  /// Element of a matrix whose columns are the last dimension.
  [[nodiscard]] T& operator()(std::int64_t row, std::int64_t column) const { return data[row * columns() + column]; }
  [[nodiscard]] T* row(std::int64_t i) const { return data + i * columns(); }
  void fill(T value) const { for (std::int64_t i = 0; i < size(); ++i) data[i] = value; }
};

/// The operands of one call, by name.
template <class T>
class Frame {
 public:
  Frame(const Operands& operands, std::span<const View<T>> values, std::span<const View<T>> gradients = {})
      : operands_(operands), values_(values), gradients_(gradients) {}

  /// What is read under this name (input, index or weight), else the output or auxiliary output; no data if there is no such operand.
  [[nodiscard]] View<T> operator[](std::string_view name) const { return find(name, values_, false); }
  /// What is written under this name, where an input has the same (optimizer state).
  [[nodiscard]] View<T> written(std::string_view name) const { return find(name, values_, true); }
  /// The gradient: of an output as it arrives, of an input or trained weight to be overwritten; no data if absent.
  [[nodiscard]] View<T> d(std::string_view name) const { return find(name, gradients_, false); }

 private:
  [[nodiscard]] View<T> find(std::string_view name, std::span<const View<T>> views, bool last) const {
    View<T> found{};
    for (std::size_t i = 0; i < operands_.size() && i < views.size(); ++i)
      if (operands_[i].name == name) {
        found = views[i];
        found.shape = operands_[i].shape;
        if (!last) break;
      }
    return found;
  }
  const Operands& operands_;
  std::span<const View<T>> values_, gradients_;
};

/// First token of every sequence, and the end: from the boundaries if packed, else equal lengths (the last may be short).
template <class T>
[[nodiscard]] std::vector<std::int64_t> sequence_bounds(std::int64_t tokens, std::int64_t length, const View<T>& starts = {}) {
  std::vector<std::int64_t> bounds;
  if (starts) {
    for (std::int64_t i = 0; i < starts.size(); ++i) bounds.push_back(static_cast<std::int64_t>(starts[i]));
    return bounds;
  }
  for (std::int64_t i = 0; i < tokens; i += length) bounds.push_back(i);
  bounds.push_back(tokens);
  return bounds;
}

}  // namespace moeplan::reference

/// Instantiates an operator's reference for both precisions; the last line of its file.
#define MOEPLAN_INSTANTIATE_REFERENCE(Operator)                                                                                     \
  template void moeplan::reference::forward<float>(const moeplan::op::Operator&, const moeplan::reference::Frame<float>&);          \
  template void moeplan::reference::forward<double>(const moeplan::op::Operator&, const moeplan::reference::Frame<double>&);        \
  template void moeplan::reference::backward<float>(const moeplan::op::Operator&, const moeplan::reference::Frame<float>&);         \
  template void moeplan::reference::backward<double>(const moeplan::op::Operator&, const moeplan::reference::Frame<double>&);
