#pragma once
/// Which expert lies in which slot of an expert group, as sim/load/placed.hpp places them: at first by the plan's load
/// model, from then on by what the routers have counted.

#include <map>

#include "executor/state/parameters.hpp"
#include "sim/load/placement.hpp"

namespace moeplan {

/// Of all layers with experts, by the plan's load model (even where a trace does not fit the model); empty where
/// experts keep their order.
[[nodiscard]] ExpertSlots expected_slots(const Problem& problem, const Plan& plan);

/// Routed copies of each expert, by decoder layer: what a placement serves.
using ExpertCounts = std::map<std::int32_t, std::vector<std::int64_t>>;

/// Fresh slots of the layers whose counts are given: on the ranks that hold most of their experts already (of the same
/// node, where groups of experts stay on nodes), so that less moves. A layer keeps its slots where new ones would leave
/// the busiest rank no lighter.
[[nodiscard]] ExpertSlots slots_by_counts(const Problem& problem, const Plan& plan, const ExpertCounts& counts,
                                          const ExpertSlots& now);

/// Load of the busiest of `ranks` over the mean, if `counts` arrive: copies of an expert are spread evenly over its
/// slots (null: experts in their order). 0 without counts.
[[nodiscard]] double rank_max_over_mean(std::span<const std::int64_t> counts, const Slots& slots, std::int64_t ranks);

}  // namespace moeplan
