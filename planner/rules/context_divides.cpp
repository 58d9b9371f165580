#include <fmt/format.h>

#include "core/spec/plan.hpp"
#include "sim/program/program.hpp"

namespace moeplan::rules_of {

/// A sequence is cut into equal runs over context ranks (two on each where early and late ones are paired), and a rank's tokens over
/// tensor ranks.
std::optional<std::string> context_divides(const Problem& problem, const Plan& plan) {
  const std::int64_t runs = context_runs(problem.model, plan), parts = static_cast<std::int64_t>(plan.parallelism.cp) * plan.parallelism.tp * runs;
  if (problem.workload.sequence_length % parts == 0) return std::nullopt;
  return fmt::format("a sequence of {} tokens does not divide over {} context x tensor ranks{}", problem.workload.sequence_length, parts / runs, runs > 1 ? " in two runs each" : "");
}
}  // namespace moeplan::rules_of
