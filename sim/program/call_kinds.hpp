#pragma once
/// What differentiation asks about a call: whether it moves anything, may be repeated, may wait, and what its reverse
/// is.

#include <string_view>

#include "sim/program/block.hpp"

namespace moeplan {

/// Its outputs are where its input is.
[[nodiscard]] bool is_view(const GraphNode& node);
/// A plain sum: the gradient of both inputs is the gradient of the output itself, and nothing runs backward.
[[nodiscard]] bool is_sum(const Op& op);
/// Calls that read and write a few bytes an element and nothing else: repeating them costs less than keeping their
/// output.
[[nodiscard]] bool is_cheap(std::string_view kind);
/// Products whose weight gradient may wait. Source: Qi et al. 2024; norms and biases make theirs with the input
/// gradient.
[[nodiscard]] bool may_wait(std::string_view kind);
/// Routing decisions are always kept: a recomputed router could pick other experts.
[[nodiscard]] bool is_routing(std::string_view kind);
[[nodiscard]] Lane lane_of(const CommCall& comm);
/// The call that takes gradients back.
[[nodiscard]] Collective reversed(Collective collective);

}  // namespace moeplan
