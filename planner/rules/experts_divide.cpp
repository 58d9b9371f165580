#include <fmt/format.h>

#include "core/spec/plan.hpp"

namespace moeplan::rules_of {

/// Experts are dealt out whole and evenly.
std::optional<std::string> experts_divide(const Problem& problem, const Plan& plan) {
  if (plan.parallelism.ep == 1 && plan.experts.replicas == 0) return std::nullopt;
  bool any = false;
  for (const LayerSpec& layer : problem.model.layers) {
    for (const Sublayer& s : layer.sublayers) {
      const MoeFfn* moe = std::get_if<MoeFfn>(&s.mixer);
      if (!moe) continue;
      any = true;
      const std::int64_t replicas = plan.experts.replicas;
      if (replicas > 0 && (moe->experts + replicas) % plan.parallelism.ep != 0)
        return fmt::format("{} experts and {} replicas do not divide over {} expert ranks", moe->experts, replicas, plan.parallelism.ep);
      if (replicas == 0 && moe->experts % plan.parallelism.ep != 0) return fmt::format("{} experts do not divide over {} expert ranks", moe->experts, plan.parallelism.ep);
    }
  }
  if (any) return std::nullopt;
  return fmt::format("the model has no experts to deal out over {} expert ranks", plan.parallelism.ep);
}
}  // namespace moeplan::rules_of
