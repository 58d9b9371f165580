#pragma once
/// What a step of a rank puts on the network, from the program alone: calls and bytes of each kind, by the conventions
/// of the communicators' counters (executor/comm/communicator.hpp), so that the two can be compared with `==`.
///
/// Gathers and reductions follow from the sharded weights, messages from what crosses the stage's ends. An exchange of
/// rows also depends on the routing: payload (T k rows of the hidden size) is exact for dropless dispatch; how much of
/// it leaves the rank, and what combine returns, is known with the counts.

#include "executor/walk/walk.hpp"

namespace moeplan {

/// Without the host-side words (labels, counts, norm, check of the order). `routes`: of every router and micro-batch of
/// the step.
[[nodiscard]] CommCounters predicted_volume(const Program& program, const Problem& problem,
                                            const Parallelism& parallelism, const HeldType& held,
                                            std::span<const RoutesOf> routes);

}  // namespace moeplan
