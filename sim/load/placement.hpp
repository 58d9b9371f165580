#pragma once
/// Where experts live: replicas of the hot ones and a packing onto ranks, as EPLB computes them (github.com/deepseek-ai/EPLB,
/// eplb.py). Three pure steps: pack groups of experts onto nodes, replicate inside each node, pack the replicas onto its ranks.

#include "sim/load/expert_load.hpp"

namespace moeplan {

/// Expert of each slot, rank by rank; every rank has as many slots.
struct Placement {
  std::vector<std::int64_t> expert;
  std::int64_t ranks = 1;
  [[nodiscard]] std::int64_t slots_per_rank() const { return static_cast<std::int64_t>(expert.size()) / ranks; }
  bool operator==(const Placement&) const = default;
};

/// Expert e on rank e ranks / E: no replicas, nothing moved.
[[nodiscard]] Placement contiguous(std::int64_t experts, std::int64_t ranks);

/// Places `slots` >= E slots on `ranks`. Each slot beyond E goes to the expert of the largest load per replica; then slots are
/// packed longest first, each onto the least loaded rank with room. With `nodes` > 1 that divide both `groups` and `ranks`, groups
/// of experts are first packed onto nodes and stay there (less traffic between nodes, more imbalance); otherwise it is global.
/// Throws InputError where the numbers do not divide.
[[nodiscard]] Placement balanced(const Shares& planned, std::int64_t ranks, std::int64_t slots, std::int64_t groups = 1, std::int64_t nodes = 1);

/// Load of each rank over the mean when `served` is what arrives: an expert's replicas share its tokens evenly. Planning on one
/// load and serving another is staleness.
[[nodiscard]] std::vector<double> rank_loads(const Shares& served, const Placement& placement);
[[nodiscard]] double rank_factor(const Shares& served, const Placement& placement);

/// Least factor that any placement without replicas can reach: the hottest expert alone on a rank.
[[nodiscard]] double floor_without_replicas(const Shares& shares, std::int64_t ranks);

}  // namespace moeplan
