#pragma once
/// The buffer through which this project's executor reaches other ranks (`Runtime::staged`): rows on their way to experts, between expert-tensor and
/// context ranks, gradients on their way into sums. One call uses it at a time, so it is as large as the largest needs, and it is held from the start
/// of a run. Planner, check before a run and executor ask here.

#include <functional>

#include "sim/program/program.hpp"

namespace moeplan {

/// In which type what is lowered in another is held; empty: in its own.
using HeldType = std::function<DType(DType)>;

/// What the exchanges of a block pass through. Tokens that go once to each rank (executor/walk/once.hpp) have rooms of their own.
[[nodiscard]] Bytes staged_rows(const Block& block, const Plan& plan, const HeldType& held = {});
/// The largest gradient of these weights that crosses the network, padded to equal shards; `type`: in which they cross it.
[[nodiscard]] Bytes staged_gradients(const std::vector<Weight>& weights, DType type, const Parallelism& parallelism);
/// The buffer of a rank; whatever runtime the plan is for.
[[nodiscard]] Bytes staging(const Program& program, const Problem& problem, const Plan& plan, const HeldType& held = {});

/// Whether a call puts a loss together over tensor ranks: an all-gather in place, of the payload that it says.
[[nodiscard]] bool is_merge(const Block& block, const BlockNode& node);

}  // namespace moeplan
