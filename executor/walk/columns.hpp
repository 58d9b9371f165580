#pragma once
/// Where the pieces of a split lie in what it splits.

#include <cstdint>
#include <vector>

#include "kernels/catalogue.hpp"

namespace moeplan {

/// Columns of piece `which` of a split, in a row of what it splits.
[[nodiscard]] std::vector<std::int32_t> piece_columns(const op::Split& op, std::size_t which);
/// Columns of what it splits.
[[nodiscard]] std::int64_t split_columns(const op::Split& op);

}  // namespace moeplan
