#pragma once
/// Small arithmetic that several contracts share: how many keys a query sees, and widths of work without a remainder.

#include <algorithm>
#include <cstdint>

namespace moeplan::op {

/// Dimensions as the real numbers that flop counts are made of.
[[nodiscard]] constexpr double num(std::int64_t v) { return static_cast<double>(v); }

/// Mean number of keys a query of a causal sequence of length `s` sees: s / 2 ("causal counted half": the diagonal's extra
/// half key is left out, as in the published formulas), all `s` where not causal, and w - w^2 / (2 s) under a window of w keys.
[[nodiscard]] constexpr double visible_keys(std::int64_t s, std::int64_t window = 0, bool causal = true) {
  if (!causal) return num(s);
  if (window <= 0 || window >= s) return num(s) / 2;
  return num(window) - num(window) * num(window) / (2 * num(s));
}

/// Mean number of keys that a selection of at most `k` keeps of what is visible: queries near the start see fewer than k.
[[nodiscard]] constexpr double selected_keys(std::int64_t s, std::int64_t k) { return visible_keys(s, k); }

/// Rows of the boundary table of packed sequences: one more than their number.
[[nodiscard]] constexpr std::int64_t boundaries(std::int64_t packed_sequences) { return packed_sequences + 1; }

}  // namespace moeplan::op
