#include <algorithm>

#include "sim/program/schedules/schedule.hpp"

namespace moeplan::schedule_of {

/// Warm-up: p - 1 - s forward passes on stage s. Steady: one forward, one backward. Cool-down: the backward passes left over.
/// min(m, p - s) micro-batches in flight. Source: Narayanan et al. 2021 (PipeDream-Flush).
std::vector<Turn> one_forward_one_backward(const Plan& plan, int stage) {
  using enum Turn::Kind;
  const auto m = static_cast<std::int32_t>(plan.micro_batches), warm = std::min(m, plan.parallelism.pp - 1 - stage);
  std::vector<Turn> out;
  for (std::int32_t j = 0; j < warm; ++j) out.push_back({.kind = forward, .micro_batch = j});
  for (std::int32_t j = warm; j < m; ++j) {
    out.push_back({.kind = forward, .micro_batch = j});
    out.push_back({.kind = backward, .micro_batch = j - warm});
  }
  for (std::int32_t j = m - warm; j < m; ++j) out.push_back({.kind = backward, .micro_batch = j});
  return out;
}

}  // namespace moeplan::schedule_of
