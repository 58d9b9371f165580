#include <fmt/format.h>

#include <algorithm>

#include "core/spec/plan.hpp"

namespace moeplan::rules_of {

/// What the expert exchange can be asked for.
std::optional<std::string> exchange_runs(const Problem& problem, const Plan& plan) {
  const ExpertExchange& x = plan.experts;
  if (x == ExpertExchange{}) return std::nullopt;
  if (x.dispatch != DType::bf16 && x.dispatch != DType::fp8) return fmt::format("tokens travel to experts as bf16 or fp8, not as {}", name_of(x.dispatch));
  if (x.chunks > 1 && offloads_activations(plan.offload)) return fmt::format("{} chunks of the exchange beside activations in host memory", x.chunks);
  const auto weighs_in_turn = [](const Sublayer& s) { const MoeFfn* moe = std::get_if<MoeFfn>(&s.mixer); return moe && moe->score == RouterScore::sparse_mixer; };
  if (x.capacity_factor && x.overflow == Overflow::reroute && std::any_of(problem.model.layers.begin(), problem.model.layers.end(), [&](const LayerSpec& l) { return std::any_of(l.sublayers.begin(), l.sublayers.end(), weighs_in_turn); }))
    return "rerouting under sparse_mixer, which weighs a choice among those before it and has no weight for another expert; dropping runs";
  if (x.pad && !x.capacity_factor) return "padding to capacity needs a capacity factor";
  if (x.replicas > 0 && plan.parallelism.ep == 1) return fmt::format("{} replicas of experts on one expert rank, which has every expert already", x.replicas);
  if (x.replicas > 0 && x.placement == ExpertPlacement::contiguous) return fmt::format("{} replicas of experts in their order: replicas follow the load, with placement balanced or hierarchical", x.replicas);
  // The executor sums them once a step (executor/ranks/moves.hpp); no program has these messages, so neither search nor simulator prices them.
  if (x.replicas > 0 && problem.workload.experts.training != Training::frozen)
    return fmt::format("{} replicas of experts that are trained ({}): each copy sees a part of the gradient, and the sum over copies is run but not priced; no replicas, or frozen experts", x.replicas, name_of(problem.workload.experts.training));
  return std::nullopt;
}
}  // namespace moeplan::rules_of
