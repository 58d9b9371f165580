#include <fmt/format.h>

#include "core/spec/plan.hpp"

namespace moeplan::rules_of {

/// A sequence is cut into equal parts over context ranks, and its parts over tensor ranks.
std::optional<std::string> context_divides(const Problem& problem, const Plan& plan) {
  const std::int64_t parts = static_cast<std::int64_t>(plan.parallelism.cp) * plan.parallelism.tp;
  if (problem.workload.sequence_length % parts == 0) return std::nullopt;
  return fmt::format("a sequence of {} tokens does not divide over {} context x tensor ranks", problem.workload.sequence_length, parts);
}
}  // namespace moeplan::rules_of
