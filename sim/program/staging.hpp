#pragma once
/// The buffer through which this project's executor reaches other ranks (`Runtime::staged`): rows on their way to experts, between expert-tensor and
/// context ranks, gradients on their way into sums. One call uses it at a time, so it is as large as the largest needs, and it is held from the start
/// of a run. Tokens that go once (executor/walk/once.hpp) also leave which went where for the way back, of each layer and micro-batch under way.
/// Planner, check before a run and executor ask here.

#include <functional>
#include <vector>

#include "sim/program/program.hpp"

namespace moeplan {

/// In which type what is lowered in another is held; empty: in its own.
using HeldType = std::function<DType(DType)>;

/// Expert ranks of a node, where tokens go to nodes first; 0: to the ranks at once, as the plan wants it, or since the expert group does not span
/// several whole nodes.
[[nodiscard]] int ranks_of_a_node(const Problem& problem, const Plan& plan);
/// Ranks of the groups within which tokens go once, one after the other: all expert ranks, or nodes and then the ranks of one. Empty: every copy of
/// a token goes by itself, since the runtime has no `deduplicated_dispatch` or the exchange is in pieces.
[[nodiscard]] std::vector<std::int64_t> once_hops(const Problem& problem, const Plan& plan);

/// The most that an exchange of tokens that go once takes.
struct OnceBytes {
  Bytes there{}, back{}, words{};   ///< of the buffer, one behind the other: rows that leave, rows that arrive, what is said of them
  Bytes ways{};                     ///< which went where
  std::int64_t rows = 0;            ///< that may reach the experts of a rank
  [[nodiscard]] Bytes buffer() const { return there + back + words; }
};
/// `dispatch`: the call of the block's forward pass.
[[nodiscard]] OnceBytes once_bytes(const Block& block, const BlockNode& dispatch, const Problem& problem, const Plan& plan, const HeldType& held = {});

/// For the exchanges of a block.
[[nodiscard]] Staged staged_rows(const Block& block, const Problem& problem, const Plan& plan, const HeldType& held = {});
/// The largest gradient of these weights that crosses the network, padded to equal shards; `type`: in which they cross it.
[[nodiscard]] Bytes staged_gradients(const std::vector<Weight>& weights, DType type, const Parallelism& parallelism);
/// Micro-batches whose ways a rank holds: a stage of several has all of a step, else one follows another.
[[nodiscard]] inline std::int64_t kept_ways(const Plan& plan) { return plan.parallelism.pp > 1 ? plan.micro_batches : 1; }
/// Of a rank, with the ways of all its slots; whatever runtime the plan is for.
[[nodiscard]] Staged staging(const Program& program, const Problem& problem, const Plan& plan, const HeldType& held = {});

/// Whether a call puts a loss together over tensor ranks: an all-gather in place, of the payload that it says.
[[nodiscard]] bool is_merge(const Block& block, const BlockNode& node);

}  // namespace moeplan
