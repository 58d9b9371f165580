#pragma once
/// How the family of Mamba-2 and lightning attention is cut on the GPU and what scratch that takes, by arithmetic
/// alone: shared by the kernels' host side and the planner's account.
///
///     S_t = a_t S_{t-1} + dt_t k_t v_t^T,   y_t = S_t^T q_t + D v_t,   one decay a token and head
///
/// Chunks are 128 tokens of the whole tensor, wherever sequences begin: a token knows where its sequence begins in its
/// chunk, or that it began before. Scratch holds the state that enters each chunk (bf16: what the products read; the
/// scan itself adds in fp32), backward also the gradient of the state that leaves it, and where the heads of a group
/// are shared among blocks each block's sum of dq and dk.

#include <algorithm>
#include <cstdint>

namespace moeplan::ssd {

inline constexpr std::int64_t chunk_tokens = 128, most_width = 128;

struct Dims {
  std::int64_t tokens = 0, heads = 0, groups = 0;  ///< groups of heads share q and k
  std::int64_t state = 0, head_dim = 0;            ///< widths of q and k, and of v
  bool gated = true;                               ///< decay and dt are data with gradients (Mamba-2), or constants
};

[[nodiscard]] constexpr std::int64_t chunks(const Dims& d) { return (d.tokens + chunk_tokens - 1) / chunk_tokens; }

/// Blocks among which the heads of a group are shared in the backward, so that there are two for each of 132
/// multiprocessors.
[[nodiscard]] constexpr std::int64_t parts(const Dims& d) {
  std::int64_t parts = 1;
  while (chunks(d) * d.groups * parts < 264 && d.heads / d.groups % (2 * parts) == 0) parts *= 2;
  return parts;
}

/// Byte offsets; -1 for what a pass does not have.
struct Layout {
  std::int64_t first =
      -1;  ///< i32 [chunks 128]: the token in its chunk where its sequence begins, -1 where that is before
  std::int64_t decay = -1,
               step = -1;  ///< f32 [heads, chunks 128]: log2 of the decay summed over the chunk up to the token, and dt
  std::int64_t states = -1, d_states = -1;    ///< bf16 [chunks, heads, state, head_dim padded to 8]
  std::int64_t terms = -1;                    ///< f32 [6, heads, chunks 128], see chunks.cuh
  std::int64_t dq_parts = -1, dk_parts = -1;  ///< f32 [parts, tokens, groups state]
  std::int64_t sums = -1;                     ///< f32 [3, chunks, heads]: dA_log, d dt_bias, dD of each chunk
  std::int64_t total = 0;
};
inline constexpr std::int64_t terms = 6;

[[nodiscard]] constexpr Layout layout(const Dims& d, bool backward) {
  Layout out;
  if (d.tokens == 0) return out;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t here = out.total;
    out.total += (bytes + 255) / 256 * 256;
    return here;
  };
  const std::int64_t rows = chunks(d) * chunk_tokens,
                     state = 2 * chunks(d) * d.heads * d.state * ((d.head_dim + 7) / 8 * 8);
  out.first = take(4 * rows), out.decay = take(4 * d.heads * rows), out.step = take(4 * d.heads * rows),
  out.states = take(state);
  if (!backward) return out;
  out.d_states = take(state);
  if (d.gated) out.terms = take(4 * terms * d.heads * rows), out.sums = take(4 * 3 * chunks(d) * d.heads);
  if (parts(d) > 1) {
    const std::int64_t sum = 4 * parts(d) * d.tokens * d.groups * d.state;
    out.dq_parts = take(sum), out.dk_parts = take(sum);
  }
  return out;
}

}  // namespace moeplan::ssd
