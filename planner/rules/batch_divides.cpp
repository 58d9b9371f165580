#include <fmt/format.h>

#include "planner/space.hpp"

namespace moeplan::rules_of {

/// The global batch must be whole micro-batches on every data rank.
std::optional<std::string> batch_divides(const Problem& problem, const Plan& plan) {
  const std::int64_t batch = problem.workload.global_batch.value_or(default_global_batch(problem)), per_step = plan.micro_batch * plan.parallelism.dp();
  if (batch % per_step == 0) return std::nullopt;
  return fmt::format("a global batch of {} sequences is not a multiple of micro-batch {} x {} data ranks = {}", batch, plan.micro_batch, plan.parallelism.dp(), per_step);
}
}  // namespace moeplan::rules_of
