#include <fmt/format.h>

#include "core/spec/plan.hpp"

namespace moeplan::rules_of {

/// A runtime that cannot multiply by packed weights needs them as bf16.
std::optional<std::string> storage_runs(const Problem& problem, const Plan& plan) {
  if (problem.runtime.runs_quantised || plan.frozen_storage == DType::bf16) return std::nullopt;
  return fmt::format("runtime {} does not run frozen weights stored as {}", problem.runtime.name, name_of(plan.frozen_storage));
}
}  // namespace moeplan::rules_of
