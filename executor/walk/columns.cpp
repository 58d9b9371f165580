#include "executor/walk/columns.hpp"

#include <array>

namespace moeplan {

std::vector<std::int32_t> piece_columns(const op::Split& op, std::size_t which) {
  const std::array widths{op.first, op.second, op.third, op.fourth};
  const std::int64_t group = op.first + op.second + op.third + op.fourth;
  std::int64_t begin = 0;
  std::size_t piece = 0, at = 0;
  for (; at < widths.size(); ++at) {
    if (widths[at] == 0) continue;
    if (piece++ == which) break;
    begin += widths[at];
  }
  std::vector<std::int32_t> out;
  for (std::int64_t g = 0; g < op.groups; ++g)
    for (std::int64_t c = 0; c < widths[at]; ++c) out.push_back(static_cast<std::int32_t>(g * group + begin + c));
  return out;
}

std::int64_t split_columns(const op::Split& op) { return op.groups * (op.first + op.second + op.third + op.fourth); }

}  // namespace moeplan
