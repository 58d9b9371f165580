#pragma once
/// Writes out, for the passes of a block, operators that look at tokens of other context ranks.
///
/// Ring attention: a rank's queries meet one rank's keys and values a step. Sequences are dealt so that each rank holds an early and a
/// late run, which makes all steps equal: its own part costs n^2/2 pairs (causal), every other n^2/2 as well (either all queries see
/// the early half of the keys, or the late half of the queries sees all), n = s / cp. While step i computes, the keys of step i + 1
/// travel. Backward the keys travel again, and with them the sums of their gradients, one rank further each step until they are home.
///
/// Halo and state: the forward pass reads a few rows, or the recurrent state, from before this rank's runs; the backward pass sends
/// their gradient back. Backward states need a scan from behind first, over queries and output gradients.

#include "sim/program/block.hpp"

namespace moeplan {

/// Appends the forward steps of ring attention over `ranks`. `reads`: q, k, (k_shared,) v; `writes`: y, lse.
void ring_forward(Block& block, const GraphNode& node, std::int64_t ranks, const std::vector<ValueId>& reads, const std::vector<ValueId>& writes, bool recompute,
                  std::vector<BlockNode>& to);

/// Appends its backward steps. `reads`: q, k, (k_shared,) v, y, lse, dy; `gradients`: of q, k, (k_shared,) v in this order, -1 where none is
/// wanted, each already a value; `weight_gradients`: written by the last step.
void ring_backward(Block& block, const GraphNode& node, std::int64_t ranks, Wants wants, const std::vector<ValueId>& reads, const std::vector<ValueId>& gradients,
                   const std::vector<ValueId>& weight_gradients, std::vector<BlockNode>& to);

/// Before the backward call of an operator with a passed state: the scan from behind and its exchange. Returns the value to read also.
ValueId state_backward(Block& block, const GraphNode& node, const std::vector<ValueId>& reads, std::vector<BlockNode>& to);

/// After the backward call of an operator with a halo: `halo_gradients`, written by it, go back to the ranks whose rows they are and are added
/// in place. Returns the completed gradients of `gradients`.
std::vector<ValueId> halo_backward(Block& block, const GraphNode& node, const std::vector<ValueId>& halo_gradients, const std::vector<ValueId>& gradients, std::vector<BlockNode>& to);

/// A value like `like` that shares memory with `with`, or stands on its own (-1).
ValueId add_like(Block& block, ValueId like, const std::string& name, ValueId with = -1);

}  // namespace moeplan
