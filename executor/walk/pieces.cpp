#include "executor/walk/pieces.hpp"

namespace moeplan {

std::int32_t piece_of(const Block& block, ValueId v) {
  const ValueId whole = whole_of(block, v);
  if (whole == v) return -1;
  std::int32_t before = 0;  // pieces are numbered one after the other
  for (ValueId other = v - 1; other >= 0 && other != whole && whole_of(block, other) == whole; --other) ++before;
  return before;
}

std::int32_t piece_of(const Block& block, const BlockNode& node) {
  std::int32_t out = -1;
  for (const auto* list : {&node.reads, &node.writes})
    for (const ValueId v : *list) {
      const std::int32_t piece = piece_of(block, v);
      if (piece < 0) continue;
      if (out >= 0 && piece != out) return -1;
      out = piece;
    }
  return out;
}

}  // namespace moeplan
