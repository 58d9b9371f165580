#include <algorithm>

#include "sim/program/schedules/schedule.hpp"

namespace moeplan::schedule_of {

/// ZB-H1: 1F1B whose backward pass is split into B (input gradients, what the stage before waits for) and W (weight gradients).
/// Stage s falls s passes behind with W, and catches up in the cool-down, where 1F1B idles: bubble (p - 1)(F + B - W), as many
/// micro-batches alive at most as in 1F1B's first stage. Source: Qi et al. 2024 (Zero Bubble Pipeline Parallelism), section 2.
std::vector<Turn> zero_bubble(const Plan& plan, int stage) {
  using enum Turn::Kind;
  const auto m = static_cast<std::int32_t>(plan.micro_batches), warm = std::min(m, plan.parallelism.pp - 1 - stage);
  std::vector<Turn> out;
  std::int32_t put_off = 0;   // the first micro-batch whose W is still to come
  const auto back = [&](std::int32_t j) {
    out.push_back({.kind = backward, .micro_batch = j});
    if (j >= stage) out.push_back({.kind = weight, .micro_batch = put_off++});
  };
  for (std::int32_t j = 0; j < warm; ++j) out.push_back({.kind = forward, .micro_batch = j});
  for (std::int32_t j = warm; j < m; ++j) {
    out.push_back({.kind = forward, .micro_batch = j});
    back(j - warm);
  }
  for (std::int32_t j = m - warm; j < m; ++j) back(j);
  while (put_off < m) out.push_back({.kind = weight, .micro_batch = put_off++});
  return out;
}

}  // namespace moeplan::schedule_of
