#pragma once
/// Calls whose result depends on where sequences begin, told about it: the lowered program has equal lengths, packed data has its own.

#include <optional>

#include "kernels/catalogue.hpp"

namespace moeplan {

/// A call with one more operand than the program's.
struct PackedCall {
  Op op;
  std::size_t at = 0;          ///< where the operand goes in the contract
  bool positions = false;      ///< it is the tokens' positions; otherwise the boundaries
};

/// The call for `sequences` packed sequences; nothing if the operator does not look beyond a token. Throws InputError, naming the operator,
/// where it does and cannot keep sequences apart.
[[nodiscard]] std::optional<PackedCall> packed(const Op& op, std::int64_t sequences);

}  // namespace moeplan
