#pragma once
/// Which query sees which key, and which tile a block works on; shared by every attention kernel.
///
/// A sequence has `keys` keys; its queries are its last `keys - missing` positions. The query at position `at` (counted
/// in keys) sees the keys [first_seen(at), end_seen(at)).
///
/// Tiles without a table: sequence s owns the slots from b_s / rows + s on, b_s its first row, and ceil(length / rows)
/// of them are in use, which is never more than it owns since ceil((e - b) / r) <= e / r - b / r + 1. A block finds its
/// sequence by bisection, so no pass over the boundaries goes before the kernel; at most one slot a sequence stays
/// empty.

#include <climits>

#include "kernels/base/pack.cuh"

namespace moeplan::cuda::attention {

constexpr float log2_e = 1.4426950408889634f;

/// One call as the kernels get it, by value. Pointers of what a pass does not use are null.
struct Problem {
  const bf16 *q = nullptr, *k = nullptr, *k_shared = nullptr, *v = nullptr;
  const int* starts = nullptr;   ///< [sequences + 1]; null: equal lengths
  const float* sinks = nullptr;  ///< [heads]
  bf16* y = nullptr;
  float* lse = nullptr;  ///< [queries, heads]
  const bf16* dy = nullptr;
  bf16 *dq = nullptr, *dk = nullptr, *dk_shared = nullptr, *dv = nullptr;
  float* dsinks = nullptr;
  float* lse_rows = nullptr;      ///< [heads, queries], in units of log 2
  float* delta_rows = nullptr;    ///< [heads, queries], <dy, y>
  float* shared_parts = nullptr;  ///< [kv_heads, keys, shared], each head's part of the gradient of k_shared
  int queries = 0, keys = 0, length = 0, sequences = 0, missing = 0;
  int heads = 0, kv_heads = 0, group = 0;      ///< group = heads / kv_heads
  int d_qk = 0, own = 0, shared = 0, d_v = 0;  ///< own = d_qk - shared
  int window = 0;                              ///< INT_MAX: none
  int section = 1;                             ///< heads whose tiles run together, see `place`
  bool causal = true;
  bool vectors = false;  ///< every row of 8 columns starts on 16 bytes
  bool hopper = false;   ///< the device runs the kernels of hopper.cuh
  float scale = 0, cap = 0;
};

struct Sequence {
  int first_key, keys, first_query, queries;
};

/// First key of sequence s. Boundaries come from device memory, so they are held inside the tensor.
__device__ __forceinline__ int bound(const Problem& p, int s) {
  if (p.starts != nullptr) return min(max(p.starts[s], 0), p.keys);
  return static_cast<int>(min(static_cast<i64>(s) * p.length, static_cast<i64>(p.keys)));
}

/// Empty where the boundaries descend or would leave the queries' tensor.
__device__ __forceinline__ Sequence sequence(const Problem& p, int s) {
  const int first = bound(p, s), keys = bound(p, s + 1) - first, queries = keys - p.missing,
            first_query = first - p.missing * s;
  if (keys <= 0 || queries < 0 || first_query < 0 || first_query + queries > p.queries) return {0, 0, 0, 0};
  return {first, keys, first_query, queries};
}

/// The sequence that owns a slot, and the tile's first row in it (INT_MAX for a slot before the first sequence).
/// `of_queries`: tiles of queries, else of keys.
template <int rows, bool of_queries>
__device__ __forceinline__ int find_slot(const Problem& p, int slot, int& row) {
  const auto begin = [&](int s) { return max(bound(p, s) - (of_queries ? p.missing * s : 0), 0) / rows + s; };
  int low = 0, high = p.sequences;  // begin(low) <= slot
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (begin(middle) <= slot)
      low = middle;
    else
      high = middle;
  }
  row = slot < begin(low) ? INT_MAX : (slot - begin(low)) * rows;
  return low;
}
struct Place {
  int head, slot;
};
/// The work of a block. Heads go in sections small enough that what their blocks stream stays in the second-level
/// cache; in a section the slots are dealt out in turn, that of the most work first, so that short ones fill the end.
__device__ __forceinline__ Place place(const Problem& p, int heads, int tiles) {
  const int size = p.section * tiles, first = static_cast<int>(blockIdx.x) / size * p.section,
            in_section = min(p.section, heads - first);
  const int rest = static_cast<int>(blockIdx.x) % size;
  return {first + rest % in_section, rest / in_section};
}

/// Slots of all tiles of `rows` rows.
constexpr int slots(int tokens, int sequences, int rows) { return tokens / rows + sequences; }

__device__ __forceinline__ int first_seen(const Problem& p, int at) { return at >= p.window ? at + 1 - p.window : 0; }
__device__ __forceinline__ int end_seen(const Problem& p, int at, int keys) {
  return p.causal ? min(at + 1, keys) : keys;
}
__device__ __forceinline__ bool sees(const Problem& p, int at, int key, int keys) {
  return key >= first_seen(p, at) && key < end_seen(p, at, keys);
}
/// Whether some pair of queries [at, last_at] and keys [key, last_key] is hidden; the tile then needs its mask.
__device__ __forceinline__ bool partly_hidden(const Problem& p, int at, int last_at, int key, int last_key, int keys) {
  return last_key >= end_seen(p, at, keys) || key < first_seen(p, last_at);
}
/// Positions of the queries that see some key of [key, last_key]: [first, end).
__device__ __forceinline__ void seers(const Problem& p, int key, int last_key, int keys, int& first, int& end) {
  first = max(p.missing, p.causal ? key : 0);
  end = p.window < keys ? static_cast<int>(min(static_cast<i64>(last_key) + p.window, static_cast<i64>(keys))) : keys;
}

}  // namespace moeplan::cuda::attention
