#include <fmt/format.h>

#include "core/spec/plan.hpp"

namespace moeplan::rules_of {

/// Every virtual stage of every pipeline stage needs a layer.
std::optional<std::string> stages_hold_layers(const Problem& problem, const Plan& plan) {
  std::int64_t sum = 0;
  const std::int64_t stages = static_cast<std::int64_t>(plan.parallelism.pp) * plan.virtual_stages;
  bool empty = static_cast<std::int64_t>(plan.stage_layers.size()) != stages;
  for (const std::int64_t n : plan.stage_layers) { sum += n; empty = empty || n < 1; }
  const auto layers = static_cast<std::int64_t>(problem.model.layers.size());
  if (!empty && sum == layers) return std::nullopt;
  return fmt::format("{} layers cannot fill {} {} stages with at least one each", layers, stages, plan.virtual_stages > 1 ? "virtual" : "pipeline");
}
}  // namespace moeplan::rules_of
