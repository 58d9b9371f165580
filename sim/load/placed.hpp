#pragma once
/// Where a plan's expert exchange puts the experts of a layer: what the planner prices and the executor does.

#include "core/spec/plan.hpp"
#include "sim/load/placement.hpp"

namespace moeplan {

/// How a placement by load keeps groups of experts together: `groups` equal runs of experts on `nodes` equal runs of ranks, each with whole runs
/// of experts; 1 and 1 where it looks at all ranks alike.
struct Kept {
  std::int64_t groups = 1, nodes = 1;
};
[[nodiscard]] Kept nodes_kept(const ExpertExchange& exchange, std::int64_t experts, std::int64_t groups, const Parallelism& parallelism, const ClusterSpec& cluster);

/// Where an exchange puts a layer's experts, whose planned shares are given: in their order, or by EPLB, hierarchically
/// with groups of experts kept on nodes where the expert group spans some. `groups`: the model's expert groups, 1
/// without.
[[nodiscard]] Placement placed(const ExpertExchange& exchange, const Shares& planned, std::int64_t groups,
                               const Parallelism& parallelism, const ClusterSpec& cluster);

}  // namespace moeplan
