#pragma once
/// One micro-batch as the walk takes it.

#include <cstdint>
#include <vector>

namespace moeplan {

/// `rows` sequences of `length` tokens, one after the other. Labels are those that the loss compares with at the same place (already
/// shifted); -100 is ignored. `starts` are the first tokens of the packed sequences over the whole micro-batch, and its end; empty where
/// every row is one sequence.
struct Batch {
  std::vector<std::int32_t> tokens, labels;
  std::vector<std::int64_t> starts;
  std::vector<std::int32_t> positions{};   ///< of each token in its sequence, where some are on other ranks; empty: counted
  [[nodiscard]] std::int64_t labelled() const {
    std::int64_t n = 0;
    for (const auto l : labels) n += l >= 0;
    return n;
  }
};

}  // namespace moeplan
