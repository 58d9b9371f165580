#pragma once
/// Exchanges in pieces (`Plan::experts.chunks`): which piece of the routed rows a call works on. The executor keeps all
/// pieces of a value in the memory of the whole, one behind the other at the rows that really came; the rows that each
/// expert has from each rank are cut evenly.

#include "sim/program/block.hpp"

namespace moeplan {

/// Which piece a value is; -1: none.
[[nodiscard]] std::int32_t piece_of(const Block& block, ValueId v);
/// On which piece a call works; -1: on none, or on all of them.
[[nodiscard]] std::int32_t piece_of(const Block& block, const BlockNode& node);

}  // namespace moeplan
