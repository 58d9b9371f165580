#include <fmt/format.h>

#include "core/spec/plan.hpp"

namespace moeplan::rules_of {

/// Every pipeline stage needs a layer.
std::optional<std::string> stages_hold_layers(const Problem& problem, const Plan& plan) {
  std::int64_t sum = 0;
  bool empty = static_cast<int>(plan.stage_layers.size()) != plan.parallelism.pp;
  for (const std::int64_t n : plan.stage_layers) { sum += n; empty = empty || n < 1; }
  const auto layers = static_cast<std::int64_t>(problem.model.layers.size());
  if (!empty && sum == layers) return std::nullopt;
  return fmt::format("{} layers cannot fill {} pipeline stages with at least one each", layers, plan.parallelism.pp);
}
}  // namespace moeplan::rules_of
