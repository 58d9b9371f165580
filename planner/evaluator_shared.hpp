#pragma once
/// The insides of an evaluator, for those that price many candidates at once (planner/scorer.hpp).

#include <map>
#include <tuple>

#include "planner/evaluate.hpp"
#include "planner/load_factors.hpp"
#include "planner/expert_prices.hpp"
#include "planner/prices.hpp"

namespace moeplan {

/// What decides how weights look on a rank before data sharding.
using WeightKey = std::tuple<int, int, int, DType, std::int64_t>;
[[nodiscard]] inline WeightKey weight_key(const Plan& p) { return {p.parallelism.tp, p.parallelism.ep, p.parallelism.etp, p.frozen_storage, p.experts.replicas}; }

/// What decides how a layer without routed experts lowers and what it takes: plans of any expert degrees share it.
using PlainKey = std::tuple<std::size_t, int, int, ContextExchange, StatePassing, std::int64_t, Recompute, DType, Offload, bool, std::int64_t>;
[[nodiscard]] inline PlainKey plain_key(std::size_t kind, const Plan& p) {
  return {kind, p.parallelism.tp, p.parallelism.cp, p.context_exchange, p.state_passing, p.micro_batch, p.recompute, p.frozen_storage, p.offload, splits_backward(p), p.loss_chunks};
}

/// What decides how much a layer keeps for backward at the balanced load: beyond the above only whether rows leave the rank at all.
using KeptKey = std::tuple<PlainKey, bool, int, std::int64_t>;
[[nodiscard]] inline KeptKey kept_key(const Plan& p) { return {plain_key(0, p), p.parallelism.ep > 1, p.parallelism.etp, p.experts.chunks}; }

struct Evaluator::Shared {
  const Problem& problem;
  ModelOutline outline;
  Prices prices;
  Links links;
  LoadFactors load;
  std::vector<std::size_t> kind_of;      ///< per slot of the model (embedding, layers, head): which kind it is
  std::vector<std::int32_t> example;     ///< per kind: a layer of it
  std::map<WeightKey, std::vector<Block>> weights;   ///< per kind
  std::vector<double> flops;             ///< per kind: model flops of one sequence, from the uncut program
  std::vector<bool> plain;               ///< per kind: without routed experts
  ExpertPrices experts{problem, prices};   ///< of calls, remembered
  PlanClocks clocks{problem, prices};
  bool contention = true;                ///< passes and the weights beside them share links and multiprocessors
  Ports ports{problem.cluster};
  mutable std::mutex mutex{};            ///< of what follows; each entry is filled once, by the first group that asks
  mutable std::map<KeptKey, std::vector<std::int64_t>> kept{}, kept_lately{};   ///< per kind, bytes at the balanced load; a search moves the second into the first between rounds, so that who reads it does not depend on threads
  mutable std::map<PlainKey, std::shared_ptr<PricedKind>> plain_kinds{};
};

/// Where a plan's experts lie, for the exchange.
[[nodiscard]] inline Links links_of(const Evaluator::Shared& shared, const Plan& plan) {
  return shared.links.placed(expert_places(shared.problem.model, plan.experts, plan.parallelism, shared.problem.cluster));
}

/// Lowers kind `id` under a group's plan and measures what it holds at the balanced load.
void hold_kind(PricedKind& kind, const Evaluator::Shared& shared, const Plan& plan, const FactorBand& band, std::size_t id);
/// What it holds at the loads of `band`, once held.
void load_kind(PricedKind& kind, const Evaluator::Shared& shared, const Plan& plan, const FactorBand& band, std::size_t id);
/// The block of a held kind where the hottest rank gets `scale` times the balanced rows.
[[nodiscard]] Block block_at(const PricedKind& kind, const Evaluator::Shared& shared, const Plan& plan, std::size_t id, double scale);
/// Seconds of a forward pass beside a backward pass, both at `scale`.
[[nodiscard]] double pair_seconds(const Block& forward, const Block& backward, const Evaluator::Shared& shared, const Plan& plan, double scale);
/// What the gathers and reductions beside it add to the passes of a timed kind.
[[nodiscard]] SlotDelays delays_of(const Evaluator::Shared& shared, const Plan& plan, const PricedKind& kind, const SlotSharding& cut);
/// Prices it, once held.
void time_kind(PricedKind& kind, const Evaluator::Shared& shared, const Plan& plan, const FactorBand& band, std::size_t id);

}  // namespace moeplan
