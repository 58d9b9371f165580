#pragma once
/// How a call of KDA is cut and what scratch it takes on the GPU, by arithmetic alone: shared by the kernels' host side
/// and the planner's account.
///
/// Scratch holds, of every chunk and head worked on at once, the record of layout.cuh, and in the backward the states
/// and their gradients: 1,160 bytes a token and head forward, 2,584 backward (D = 128). What does not fit the limit is
/// worked on in parts:
///
/// - Backward: heads in groups, as even as they come, one after the other. A group of few heads leaves most of a device
/// idle in its scans,
///   so the sequences are cut into segments by the heads of a *group*.
/// - Forward: all heads, a stretch of chunks at a time (a slab); the one sequence that crosses into the next slab hands
/// its state on in
///   fp32, unrounded. Costs nothing but a few launches, where groups of heads would leave the scans without work.
///   Groups of heads where they are few enough for segments.

#include <algorithm>
#include <cstdint>

#include "kernels/kda/kda.hpp"

namespace moeplan::kernels::kda {

/// Most scratch that the catalogue gives a call: 2,000 bytes a token and head of 128 columns, so that the peak of
/// forward and backward stays below 0.6 of flash-linear-attention's (bench/results/kda_h200.md), and never over 2 GiB.
/// Sixteen heads go at once below that: fewer leave most of a device idle; and 128 MiB are for the asking. One head is
/// the least: its backward takes 2.73 GB at 2^20 tokens, whatever the limit.
[[nodiscard]] constexpr std::int64_t scratch_limit(const Dims& dims) {
  const std::int64_t columns = std::int64_t{dims.heads} * dims.head_dim,
                     at_once = std::min<std::int64_t>(columns, 16 * 128);
  return std::clamp(dims.tokens * std::max(columns * 2000, at_once * 3000) / 128, std::int64_t{128} << 20,
                    std::int64_t{2} << 30);
}

inline constexpr std::int64_t whole_sequence = std::int64_t{1} << 30;

/// The parts of a call, and the byte offsets of its scratch.
struct Cut {
  std::int64_t max_chunks = 0, max_segments = 0, groups = 1, group_heads = 0;
  std::int64_t segment_chunks = whole_sequence;
  std::int64_t slabs = 1, slab_chunks = 0;  ///< chunks worked on at once
  std::int64_t record_bytes = 0;
  bool segmented = false;
  std::int64_t chunks = 0, segments = 0, slab_segments = 0, chunk_offsets = 0, segment_offsets = 0, records = 0,
               carried = 0, maps = 0, ends = 0, begins = 0, states = 0, d_states = 0, d_n = 0, partials = 0,
               d_begins = 0, total = 0;

  /// Heads `first(g)` to `first(g + 1)` are group g of `heads`.
  [[nodiscard]] int first(std::int64_t group, int heads) const { return static_cast<int>(group * heads / groups); }
};

/// Chunks of a segment. Scans with fewer warpgroups than the card has multiprocessors can be cut. That costs, in chunks
/// of an uncut scan: an affine pass besides the scan itself and a join of 5 a segment; in the backward also a reverse
/// pass and its join, and all three passes wait for memory: 2.5 L + 5 n forward and 5 L + 10 n backward for n segments
/// of L chunks, least at n = sqrt(chunks / 2). Measured at 2 to 22 heads (kda_h200.md, "Segments").
[[nodiscard]] constexpr std::int64_t segment_length(const Dims& dims, std::int64_t heads, const Options& options,
                                                    std::int64_t max_chunks, bool backward) {
  constexpr std::int64_t multiprocessors = 132;
  if (options.segment_chunks > 0) return std::min(options.segment_chunks, whole_sequence);
  const std::int64_t chunks = max_chunks / dims.sequences;
  std::int64_t cuts = multiprocessors / (dims.sequences * heads * (dims.head_dim / 64));
  while (2 * cuts * cuts > chunks) --cuts;
  if (cuts < 2) return whole_sequence;
  const std::int64_t length = (chunks + cuts - 1) / cuts;
  return 5 * length + 10 * cuts < (backward ? 1 : 2) * chunks ? length : whole_sequence;
}

/// Sets the offsets and the sum.
constexpr void lay_out(Cut& c, const Dims& dims, bool backward) {
  c.total = 0;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t here = c.total;
    c.total += (bytes + 1023) / 1024 * 1024;
    return here;
  };
  const std::int64_t d = dims.head_dim, tiles = c.slab_chunks * c.group_heads, state = c.group_heads * d * d * 4;
  const std::int64_t states = c.segmented ? c.max_segments * state : 0;
  c.chunks = take(c.max_chunks * 16), c.segments = take(c.max_segments * 16);
  c.slab_segments = take(c.slabs > 1 ? c.max_segments * 16 : 0), c.carried = take(c.slabs > 1 ? 2 * state : 0);
  c.chunk_offsets = take((dims.sequences + 1) * 4), c.segment_offsets = take((dims.sequences + 1) * 4);
  c.records = take(tiles * c.record_bytes);
  c.maps = take(states), c.ends = take(states), c.begins = take(states);
  if (!backward) return;
  c.states = take(tiles * 2 * d * d), c.d_states = take(tiles * 2 * d * d), c.d_n = take(tiles * 128 * d);
  c.partials = take(tiles * 2 * d * 4), c.d_begins = take(states);
}

/// `dims` within the contract.
[[nodiscard]] constexpr Cut cut_of(const Dims& dims, const Options& options, Pass pass) {
  constexpr std::int64_t panel = 64 * 128, fewest_slab_chunks = 16;
  const bool backward = pass == Pass::backward;
  const auto limit = static_cast<std::int64_t>(options.workspace_limit);
  Cut c;
  c.max_chunks = std::max<std::int64_t>((dims.tokens + 63 * dims.sequences) / 64, 1);
  c.record_bytes = dims.head_dim / 64 * 4 * panel + panel + 4 * dims.head_dim + (backward ? panel : 0);
  for (c.groups = 1;; ++c.groups) {
    c.group_heads = (dims.heads + c.groups - 1) / c.groups;
    c.segment_chunks = segment_length(dims, c.group_heads, options, c.max_chunks, backward);
    c.segmented = c.segment_chunks < c.max_chunks;
    c.max_segments = dims.sequences + (c.segmented ? c.max_chunks / c.segment_chunks : 0);
    c.slabs = 1, c.slab_chunks = c.max_chunks;
    lay_out(c, dims, backward);
    if (limit == 0 || c.total <= limit) return c;
    const bool last = c.groups == dims.heads;
    if (!backward && !c.segmented) {
      const std::int64_t least = std::min(fewest_slab_chunks, c.max_chunks);
      Cut slabs = c;
      slabs.slabs = 2, slabs.slab_chunks = 0;
      lay_out(slabs, dims, backward);
      std::int64_t fits = (limit - slabs.total) / (c.group_heads * c.record_bytes) - 1;  // the last for padding
      if (last) fits = std::max(fits, least);
      if (fits >= least) {
        c.slabs = (c.max_chunks + fits - 1) / fits, c.slab_chunks = (c.max_chunks + c.slabs - 1) / c.slabs;
        lay_out(c, dims, backward);
        return c;
      }
    }
    if (last) return c;
  }
}

}  // namespace moeplan::kernels::kda
