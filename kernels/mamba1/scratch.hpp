#pragma once
/// How Mamba-1's scan is cut on the GPU and what scratch that takes, by arithmetic alone: shared by the kernels' host
/// side and the planner's account. Chunks are 64 tokens of the whole tensor, wherever sequences begin. Scratch holds
/// the state that enters each chunk (fp32) and the sum of dt over it, which makes its decay, backward also the gradient
/// of the state that leaves it and the sums that end in other tensors.

#include <cstdint>

#include "kernels/mamba1/op.hpp"

namespace moeplan::mamba1 {

/// Tokens of a chunk, channels of a block, most entries of a channel's state, channels whose dB and dC one block adds
/// up.
inline constexpr std::int64_t chunk_tokens = 64, block_channels = 64, most_state = 16, part_channels = 256;

/// Byte offsets; -1 for what a pass does not have.
struct Layout {
  std::int64_t states = -1, d_states = -1;  ///< f32 [chunks, inner, 16]
  std::int64_t steps = -1;                  ///< f32 [chunks, inner]
  std::int64_t parts = -1;                  ///< f32 [parts, tokens, 32]: dB, dC of 256 channels
  std::int64_t a_log = -1, d = -1;          ///< f32 [chunks, inner state], [chunks, inner]
  std::int64_t total = 0;
};

[[nodiscard]] constexpr std::int64_t chunks(const op::Mamba1& op) {
  return (op.tokens + chunk_tokens - 1) / chunk_tokens;
}
[[nodiscard]] constexpr std::int64_t parts(const op::Mamba1& op) {
  return (op.inner + part_channels - 1) / part_channels;
}

[[nodiscard]] constexpr Layout layout(const op::Mamba1& op, bool backward) {
  Layout out;
  if (op.tokens == 0) return out;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t here = out.total;
    out.total += (bytes + 255) / 256 * 256;
    return here;
  };
  const std::int64_t channels = 4 * chunks(op) * op.inner;
  out.states = take(channels * most_state), out.steps = take(channels);
  if (!backward) return out;
  out.d_states = take(channels * most_state), out.parts = take(4 * parts(op) * op.tokens * 2 * most_state);
  if (op.training == Training::full) out.a_log = take(channels * op.state), out.d = take(channels);
  return out;
}

}  // namespace moeplan::mamba1
