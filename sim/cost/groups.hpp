#pragma once
/// From the groups of a plan to their places on the cluster.

#include "core/spec/plan.hpp"
#include "sim/cost/collectives.hpp"

namespace moeplan {

/// Where the members of a group sit: how many, and how many ranks apart. Ranks count tensor first, then context, shard, replica,
/// stage; expert-tensor, expert and expert-data ranks fold over the same ranks of a stage.
[[nodiscard]] GroupShape group_shape(Group group, const Parallelism& parallelism);

}  // namespace moeplan
