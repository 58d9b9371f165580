#pragma once
/// The order in which a stage with virtual stages meets (chunk, micro-batch): p micro-batches through its first chunk, the same p
/// through its second, ..., then the next p. Backward the chunks come last first. Source: Narayanan et al. 2021, section 2.2;
/// Megatron-Core's schedule table with a group of p.

#include "sim/program/schedules/schedule.hpp"

namespace moeplan::schedule_of {

struct VirtualPass {
  std::int32_t chunk, micro_batch;
};

/// The k-th pass of one direction, k < micro-batches x virtual stages.
[[nodiscard]] inline VirtualPass virtual_pass(const Plan& plan, std::int32_t k, bool backward) {
  const std::int32_t v = plan.virtual_stages;
  if (v == 1) return {0, k};
  const std::int32_t p = plan.parallelism.pp, group = k / (p * v), rest = k % (p * v), chunk = rest / p;
  return {backward ? v - 1 - chunk : chunk, group * p + rest % p};
}

}  // namespace moeplan::schedule_of
