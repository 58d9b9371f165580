#pragma once
/// What the KDA kernels hand to each other: chunks, segments, and the record that the preparation writes for every
/// (chunk, head) and the scans read with bulk copies.
///
/// A chunk is 64 tokens of one sequence (the last one may be short: missing rows are zeros with decay 1). All tiles are
/// bf16 "images": rows of 128 bytes with the 128-byte swizzle, ready for wgmma; D / 64 such panels side by side.
///
///     u      -      U^T in accumulator order: [D / 64 slices][4][128 threads][16 bytes]
///     w      -W^T   [D channels][64 tokens]
///     k_end  k exp(G_C - G)   [64 tokens][D]
///     q_up   q exp(G)         [64 tokens][D]
///     p      P                [64 tokens i][64 tokens j]
///     gamma  exp(G_C)         D floats
///     t      (I + L)^-1       [64][64], backward only

#include "kernels/kda/kda.hpp"

#include <cstdint>

namespace moeplan::kernels::kda {

inline constexpr int chunk_tokens = 64;
inline constexpr int panel_bytes = 64 * 128;

template <int D>
struct Record {
  static constexpr int panels = D / 64;
  static constexpr int tile = panels * panel_bytes;
  static constexpr int u = 0, w = tile, k_end = 2 * tile, q_up = 3 * tile, p = 4 * tile, gamma = p + panel_bytes;
  static constexpr int forward_bytes = gamma + D * 4;
  static constexpr int t = forward_bytes;
  static constexpr int backward_bytes = t + panel_bytes;
};

struct Chunk {
  std::int64_t begin;  ///< first token
  int rows;            ///< 1 to 64; 0 marks an unused entry
  int sequence;
};

/// Consecutive chunks of one sequence that one scan walks.
struct Segment {
  int first_chunk;
  int chunks;    ///< 0 for an empty sequence
  int sequence;  ///< -1 marks an unused entry
  int position;  ///< bit 0: first of its sequence, bit 1: last
};

/// Everything a kernel may need; passed by value. Pointers are to whole tensors, offsets are 64-bit.
struct Launch {
  const Bf16 *q, *k, *v, *gate, *d_out;
  const float *beta, *a_log, *dt_bias;
  Bf16 *out, *d_q, *d_k, *d_v, *d_gate;
  float* d_beta;
  int heads;        ///< of the tensors
  int first_head;   ///< of this group
  int group_heads;  ///< heads worked on in this launch
  float scale;
  float lower_bound;  ///< of the bounded gate; 0 selects the softplus gate
  const Chunk* chunks;
  const Segment* segments;
  const int* chunk_offsets;    ///< [sequences + 1]
  const int* segment_offsets;  ///< [sequences + 1]
  int max_chunks, max_segments;
  char* records;
  std::int64_t record_bytes;
  // Backward: per (chunk, head) images.
  char *states, *d_states;    ///< S_0^T and dS_C^T: [D values][D keys]
  char* d_n;                  ///< dN [64 tokens][D]; N replaces `u` in the record
  float* parameter_partials;  ///< [chunks, group_heads, 2 D]: sums over the chunk for dt_bias and A_log
};

/// Index of the record of (chunk, head of the group).
__host__ __device__ inline std::int64_t record_index(const Launch& launch, int chunk, int head) {
  return static_cast<std::int64_t>(chunk) * launch.group_heads + head;
}

}  // namespace moeplan::kernels::kda
