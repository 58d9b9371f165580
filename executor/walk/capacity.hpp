#pragma once
/// What becomes of the copies that an expert has no room for. An expert takes at most `capacity` copies of a micro-batch's tokens on this rank;
/// which ones, and whether the others go elsewhere, is the plan's overflow action.
///   drop_position      the first in token order stay
///   drop_probability   those of the largest routing weight stay, earlier tokens first among equals (Megatron-Core's `probs` policy)
///   reroute            as drop_position, but then each copy that was left out, in token order, goes to the expert that its token scores highest among
///                      those with room that it does not use yet; only what finds none is dropped. Its weight is the router's for the new choice.
/// Experts without weights (LongCat) take everything.

#include <cstdint>
#include <span>
#include <vector>

#include "core/spec/choices.hpp"
#include "kernels/router/op.hpp"

namespace moeplan {

/// Rows of an expert: ceil(factor x copies / experts), at least 1.
[[nodiscard]] std::int64_t expert_capacity(double factor, std::int64_t copies, std::int64_t experts);

/// What a router of some tokens decided, by token: scores [tokens, experts], selection scores (scores and their correction), choices [tokens, top_k].
struct Choices {
  std::span<const float> scores, selection;
  std::vector<std::int32_t> indices;
  std::vector<float> weights;
  std::vector<float> zero_weight;   ///< [tokens] where there are experts without weights
};

struct Overflowed {
  std::vector<std::int32_t> kept;     ///< [tokens, top_k]: the expert, or -1 for a copy that is dropped
  std::vector<std::int64_t> rows;     ///< of each expert with weights
  std::int64_t dropped = 0, moved = 0;
};

/// Applies the action; `reroute` changes indices, weights and zero_weight of `choices`.
[[nodiscard]] Overflowed apply_capacity(const op::Router& router, Overflow action, std::int64_t capacity, Choices& choices);

}  // namespace moeplan
