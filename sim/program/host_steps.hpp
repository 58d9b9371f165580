#pragma once
/// Activations in host memory: copies out and back, written into the passes of a block.

#include <utility>

#include "sim/program/block.hpp"

namespace moeplan {

/// Large kept values leave for the host after the call that made them, and the backward pass, still empty, starts with
/// their return. Values below `kOffloaded`, always-kept ones and those carried through from other blocks stay. Returns,
/// for each value that left, the one by which it is known in the backward pass. `operands` of a copy back: the kept values that
/// those it writes are.
[[nodiscard]] std::vector<std::pair<ValueId, ValueId>> move_kept(Block& block);

/// Puts the first `returns` calls of the backward pass in the order of their first reader.
void order_returns(Block& block, std::size_t returns);

}  // namespace moeplan
