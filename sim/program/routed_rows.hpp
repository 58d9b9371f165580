#pragma once
/// Another expert load for a block that is lowered already. Between dispatch and combine rows follow the load; nothing
/// else does, so a search need not lower a layer kind once for each load that it looks at.

#include <optional>

#include "sim/program/block.hpp"

namespace moeplan {

/// The number of rows in a call on rows at the experts: grouped products, ragged GLUs and activations; null for other calls.
[[nodiscard]] std::int64_t* ragged_rows(Op& op);
/// The same of a call that reads what came from a dispatch, or what was made of it: sums too.
[[nodiscard]] std::int64_t* rows_of_routed(Op& op);

/// What follows the load in a block: values whose first dimension is rows at the experts, and the calls on them.
struct RoutedRows {
  std::int64_t sent = 0;  ///< rows that this rank sends, which is what arrives at the balanced load
  std::vector<ValueId> values;
  std::vector<std::size_t> forward, backward, weight_backward;  ///< positions of the calls in their pass
};

/// Nothing where more than rows depends on the load: rows gathered over expert-tensor ranks, copies to the host,
/// exchanges of different size in one block. Empty where no rows leave the rank.
[[nodiscard]] std::optional<RoutedRows> routed_rows(const Block& block);

/// Makes the block what lowering it with this `routed_scale` gives (tests/program/routed_rows_test.cpp).
void set_routed_scale(Block& block, const RoutedRows& rows, double scale);

}  // namespace moeplan
