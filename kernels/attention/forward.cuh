#pragma once
/// Forward for every case (sm_80 form): a block has 64 queries of one head, 16 a warp, and walks the keys they see in
/// tiles of 64 with a running maximum and sum (Dao 2023, FlashAttention-2). Keys of the next tile arrive under the
/// softmax and the second product, values under the first product.

#include "kernels/attention/tiles.cuh"

namespace moeplan::cuda::attention {

constexpr int query_rows = 64, key_rows = 64, tile_threads = 128;

template <class Size>
constexpr std::size_t forward_bytes = 2 * (query_rows * Size::qk + key_rows * (Size::qk + Size::v));

/// Turns the dot products of the tile of keys from `key` on into weights under the new running maximum, and shrinks what
/// was summed under the one before.
template <bool capped, int panels>
__device__ __forceinline__ void weigh_tile(const Problem& p, float (&z)[key_rows / 8][4], float (&most)[2],
                                           float (&sum)[2], float (&out)[panels][4], bool masked, const int (&at)[2],
                                           int key, int keys) {
  const int column = key + threadIdx.x % 4 * 2;
  float now[2] = {most[0], most[1]}, base[2], shrink[2];
#pragma unroll
  for (int j = 0; j < key_rows / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      z[j][e] = logit<capped>(p, z[j][e]).value;
      if (masked && !sees(p, at[e / 2], column + 8 * j + e % 2, keys)) z[j][e] = -INFINITY;
      now[e / 2] = fmaxf(now[e / 2], z[j][e]);
    }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], 1));
    now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], 2));
    base[r] = now[r] == -INFINITY ? 0 : now[r];  // nothing seen so far
    shrink[r] = power_of_two(most[r] - base[r]);
    most[r] = now[r], sum[r] *= shrink[r];
  }
#pragma unroll
  for (int j = 0; j < panels; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) out[j][e] *= shrink[e / 2];
#pragma unroll
  for (int j = 0; j < key_rows / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) z[j][e] = power_of_two(z[j][e] - base[e / 2]), sum[e / 2] += z[j][e];
}

template <class Size, bool capped>
__global__ void __launch_bounds__(tile_threads) attend_forward(const Problem p) {
  extern __shared__ __align__(1024) char memory[];
  const int tiles = slots(p.queries, p.sequences, query_rows);
  const auto [head, slot] = place(p, p.heads, tiles);
  int at_row;  // of the tile in its sequence's queries; long rows first
  const Sequence s = sequence(p, find_slot<query_rows, true>(p, tiles - 1 - slot, at_row));
  if (at_row >= s.queries) return;
  const std::uint32_t q_tile = ptx::shared_address(memory), k_tile = q_tile + 2 * query_rows * Size::qk,
                      v_tile = k_tile + 2 * key_rows * Size::qk;
  const int kv = head / p.group, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Rows q{p.q + head * p.d_qk, static_cast<i64>(p.heads) * p.d_qk, p.d_qk};
  const Rows k{p.k + kv * p.own, static_cast<i64>(p.kv_heads) * p.own, p.own, p.k_shared, p.shared, p.shared};
  const Rows v{p.v + kv * p.d_v, static_cast<i64>(p.kv_heads) * p.d_v, p.d_v};
  const i64 end = s.first_key + s.keys;
  const int first_at = p.missing + at_row, last_at = min(first_at + query_rows, s.keys) - 1;
  const int first_tile = first_seen(p, first_at) / key_rows,
            end_tile = (end_seen(p, last_at, s.keys) + key_rows - 1) / key_rows;

  load_tile<query_rows, Size::qk, tile_threads>(q_tile, q, s.first_query + at_row, s.first_query + s.queries,
                                                p.vectors);
  load_tile<key_rows, Size::qk, tile_threads>(k_tile, k, s.first_key + first_tile * key_rows, end, p.vectors);
  ptx::copy_commit();

  const int at[2] = {first_at + warp * 16 + lane / 4, first_at + warp * 16 + lane / 4 + 8};
  const float sink = p.sinks != nullptr ? p.sinks[head] * log2_e : -INFINITY;
  float most[2] = {sink, sink}, sum[2] = {};  // of this thread's columns; the sink joins at the end
  float out[Size::v / 8][4] = {};
  for (int tile = first_tile; tile < end_tile; ++tile) {
    ptx::copy_wait<0>();
    __syncthreads();  // the keys have landed, and nobody reads the values before
    load_tile<key_rows, Size::v, tile_threads>(v_tile, v, s.first_key + tile * key_rows, end, p.vectors);
    ptx::copy_commit();
    float z[key_rows / 8][4] = {};
    multiply_rows<query_rows, key_rows, Size::qk>(z, q_tile, warp * 16, k_tile);
    ptx::copy_wait<0>();
    __syncthreads();
    if (tile + 1 < end_tile)
      load_tile<key_rows, Size::qk, tile_threads>(k_tile, k, s.first_key + (tile + 1) * key_rows, end, p.vectors);
    ptx::copy_commit();

    const int key = tile * key_rows;
    const bool masked = partly_hidden(p, first_at, first_at + query_rows - 1, key, key + key_rows - 1, s.keys);
    weigh_tile<capped>(p, z, most, sum, out, masked, at, key, s.keys);
    std::uint32_t weights[key_rows / 16][4];
    as_left<key_rows>(z, weights);
    multiply_columns<key_rows, Size::v>(out, weights, v_tile);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
    sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    if (p.sinks != nullptr) sum[r] += power_of_two(sink - most[r]);
    const int row = at[r] - p.missing;
    if (row >= s.queries) continue;
    const i64 query = s.first_query + row;
    if (lane % 4 == 0) p.lse[query * p.heads + head] = (most[r] + log2f(sum[r])) / log2_e;
    bf16* y = p.y + (query * p.heads + head) * p.d_v;
#pragma unroll
    for (int j = 0; j < Size::v / 8; ++j)
      store_pair(y, 8 * j + lane % 4 * 2, p.d_v, out[j][2 * r] / sum[r], out[j][2 * r + 1] / sum[r], p.vectors);
  }
}

}  // namespace moeplan::cuda::attention
