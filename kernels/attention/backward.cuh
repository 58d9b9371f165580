#pragma once
/// Backward for every case (sm_80 form), two kernels so that each gradient has one owner and one order of its sums, and
/// no atomics: `attend_backward_q` has 64 queries of one head and walks the keys, `attend_backward_k` has 64 keys of
/// one key head and walks the query heads that share it and their queries. Both make the logits again: seven products
/// instead of five.

#include "kernels/attention/forward.cuh"

namespace moeplan::cuda::attention {

template <class Size>
constexpr std::size_t backward_q_bytes = 2 * (query_rows + Size::stream) * (Size::qk + Size::v);

/// dq = scale sum_j dz_ij k_j.
template <class Size, bool capped>
__global__ void __launch_bounds__(tile_threads) attend_backward_q(const Problem p) {
  extern __shared__ __align__(1024) char memory[];
  constexpr int n = Size::stream;
  const int tiles = slots(p.queries, p.sequences, query_rows);
  const auto [head, slot] = place(p, p.heads, tiles);
  int at_row;
  const Sequence s = sequence(p, find_slot<query_rows, true>(p, tiles - 1 - slot, at_row));
  if (at_row >= s.queries) return;
  const std::uint32_t q_tile = ptx::shared_address(memory), g_tile = q_tile + 2 * query_rows * Size::qk;
  const std::uint32_t k_tile = g_tile + 2 * query_rows * Size::v, v_tile = k_tile + 2 * n * Size::qk;
  const int kv = head / p.group, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Rows q{p.q + head * p.d_qk, static_cast<i64>(p.heads) * p.d_qk, p.d_qk};
  const Rows g{p.dy + head * p.d_v, static_cast<i64>(p.heads) * p.d_v, p.d_v};
  const Rows k{p.k + kv * p.own, static_cast<i64>(p.kv_heads) * p.own, p.own, p.k_shared, p.shared, p.shared};
  const Rows v{p.v + kv * p.d_v, static_cast<i64>(p.kv_heads) * p.d_v, p.d_v};
  const i64 end = s.first_key + s.keys;
  const int first_at = p.missing + at_row, last_at = min(first_at + query_rows, s.keys) - 1;
  const int first_tile = first_seen(p, first_at) / n, end_tile = (end_seen(p, last_at, s.keys) + n - 1) / n;

  load_tile<query_rows, Size::qk, tile_threads>(q_tile, q, s.first_query + at_row, s.first_query + s.queries,
                                                p.vectors);
  load_tile<query_rows, Size::v, tile_threads>(g_tile, g, s.first_query + at_row, s.first_query + s.queries, p.vectors);
  load_tile<n, Size::qk, tile_threads>(k_tile, k, s.first_key + first_tile * n, end, p.vectors);
  ptx::copy_commit();
  int at[2];
  float lse[2] = {}, delta[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    at[r] = first_at + warp * 16 + lane / 4 + 8 * r;
    const i64 row = static_cast<i64>(head) * p.queries + s.first_query + at[r] - p.missing;
    if (at[r] < s.keys) lse[r] = p.lse_rows[row], delta[r] = p.delta_rows[row];
  }
  float dq[Size::qk / 8][4] = {};
  for (int tile = first_tile; tile < end_tile; ++tile) {
    load_tile<n, Size::v, tile_threads>(v_tile, v, s.first_key + tile * n, end, p.vectors);
    ptx::copy_commit();
    ptx::copy_wait<1>();
    __syncthreads();
    float z[n / 8][4] = {}, dp[n / 8][4] = {};
    multiply_rows<query_rows, n, Size::qk>(z, q_tile, warp * 16, k_tile);
    ptx::copy_wait<0>();
    __syncthreads();
    multiply_rows<query_rows, n, Size::v>(dp, g_tile, warp * 16, v_tile);
    const int key = tile * n;
    const bool masked = partly_hidden(p, first_at, first_at + query_rows - 1, key, key + n - 1, s.keys);
#pragma unroll
    for (int j = 0; j < n / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Logit one = logit<capped>(p, z[j][e]);
        float w = power_of_two(one.value - lse[e / 2]);
        if (masked && !sees(p, at[e / 2], key + 8 * j + lane % 4 * 2 + e % 2, s.keys)) w = 0;
        z[j][e] = w * one.slope * (dp[j][e] - delta[e / 2]);
      }
    std::uint32_t dz[n / 16][4];
    as_left<n>(z, dz);
    multiply_columns<n, Size::qk>(dq, dz, k_tile);
    __syncthreads();  // nobody reads keys and values any more
    if (tile + 1 < end_tile)
      load_tile<n, Size::qk, tile_threads>(k_tile, k, s.first_key + (tile + 1) * n, end, p.vectors);
    ptx::copy_commit();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = at[r] - p.missing;
    if (row >= s.queries) continue;
    bf16* to = p.dq + ((s.first_query + static_cast<i64>(row)) * p.heads + head) * p.d_qk;
#pragma unroll
    for (int j = 0; j < Size::qk / 8; ++j)
      store_pair(to, 8 * j + lane % 4 * 2, p.d_qk, p.scale * dq[j][2 * r], p.scale * dq[j][2 * r + 1], p.vectors);
  }
}

template <class Size>
constexpr std::size_t backward_k_bytes = 2 * (key_rows + Size::stream) * (Size::qk + Size::v) + 8 * Size::stream;

/// dv = sum_i p_ij dy_i and dk = scale sum_i dz_ij q_i, over the heads of the group; of both, what `keys` and `values`
/// ask for (the accumulators of heads wider than 128 do not fit the registers together).
template <class Size, bool capped, bool keys, bool values>
__global__ void __launch_bounds__(tile_threads) attend_backward_k(const Problem p) {
  extern __shared__ __align__(1024) char memory[];
  constexpr int n = Size::stream;
  const int tiles = slots(p.keys, p.sequences, key_rows);
  const auto [kv, slot] = place(p, p.kv_heads, tiles);
  int key;  // the tile's first key in its sequence; the first keys are seen by most
  const Sequence s = sequence(p, find_slot<key_rows, false>(p, slot, key));
  if (key >= s.keys) return;
  const std::uint32_t k_tile = ptx::shared_address(memory), v_tile = k_tile + 2 * key_rows * Size::qk;
  const std::uint32_t q_tile = v_tile + 2 * key_rows * Size::v, g_tile = q_tile + 2 * n * Size::qk;
  float* lse = reinterpret_cast<float*>(memory + 2 * (key_rows + n) * (Size::qk + Size::v));
  float* delta = lse + n;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Rows k{p.k + kv * p.own, static_cast<i64>(p.kv_heads) * p.own, p.own, p.k_shared, p.shared, p.shared};
  const Rows v{p.v + kv * p.d_v, static_cast<i64>(p.kv_heads) * p.d_v, p.d_v};
  load_tile<key_rows, Size::qk, tile_threads>(k_tile, k, s.first_key + key, s.first_key + s.keys, p.vectors);
  if constexpr (keys)
    load_tile<key_rows, Size::v, tile_threads>(v_tile, v, s.first_key + key, s.first_key + s.keys, p.vectors);
  int first, end;
  seers(p, key, min(key + key_rows, s.keys) - 1, s.keys, first, end);
  const int mine = key + warp * 16 + lane / 4;
  float dk[keys ? Size::qk / 8 : 1][4] = {}, dv[values ? Size::v / 8 : 1][4] = {};
  for (int head = kv * p.group; head < (kv + 1) * p.group; ++head) {
    const Rows q{p.q + head * p.d_qk, static_cast<i64>(p.heads) * p.d_qk, p.d_qk};
    const Rows g{p.dy + head * p.d_v, static_cast<i64>(p.heads) * p.d_v, p.d_v};
    for (int at = first; at < end; at += n) {
      const i64 query = s.first_query + at - p.missing, last = s.first_query + s.queries;
      load_tile<n, Size::qk, tile_threads>(q_tile, q, query, last, p.vectors);
      load_tile<n, Size::v, tile_threads>(g_tile, g, query, last, p.vectors);
      ptx::copy_commit();
      for (int i = threadIdx.x; i < n; i += tile_threads) {
        const bool valid = query + i < last;
        const i64 row = static_cast<i64>(head) * p.queries + query + i;
        lse[i] = valid ? p.lse_rows[row] : 0, delta[i] = valid ? p.delta_rows[row] : 0;
      }
      ptx::copy_wait<0>();
      __syncthreads();
      float z[n / 8][4] = {}, dp[n / 8][4] = {};
      multiply_rows<key_rows, n, Size::qk>(z, k_tile, warp * 16, q_tile);
      if constexpr (keys) multiply_rows<key_rows, n, Size::v>(dp, v_tile, warp * 16, g_tile);
      const bool masked = at + n > s.keys || partly_hidden(p, at, at + n - 1, key, key + key_rows - 1, s.keys);
#pragma unroll
      for (int j = 0; j < n / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = 8 * j + lane % 4 * 2 + e % 2;
          const Logit one = logit<capped>(p, z[j][e]);
          float w = power_of_two(one.value - lse[i]);
          if (masked && (at + i >= s.keys || !sees(p, at + i, mine + e / 2 * 8, s.keys))) w = 0;
          z[j][e] = w;
          if constexpr (keys) dp[j][e] = w * one.slope * (dp[j][e] - delta[i]);
        }
      std::uint32_t left[n / 16][4];
      if constexpr (values) {
        as_left<n>(z, left);
        multiply_columns<n, Size::v>(dv, left, g_tile);
      }
      if constexpr (keys) {
        as_left<n>(dp, left);
        multiply_columns<n, Size::qk>(dk, left, q_tile);
      }
      __syncthreads();  // nobody reads this tile any more
    }
  }
  ptx::copy_wait<0>();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (mine + 8 * r >= s.keys) continue;
    const i64 row = s.first_key + mine + 8 * r;
    if constexpr (values) {
      bf16* to = p.dv + (row * p.kv_heads + kv) * p.d_v;
#pragma unroll
      for (int j = 0; j < Size::v / 8; ++j)
        store_pair(to, 8 * j + lane % 4 * 2, p.d_v, dv[j][2 * r], dv[j][2 * r + 1], p.vectors);
    }
    if constexpr (keys) {
#pragma unroll
      for (int j = 0; j < Size::qk / 8; ++j) {
        const int column = 8 * j + lane % 4 * 2;
        if (p.dk != nullptr)
          store_pair(p.dk + (row * p.kv_heads + kv) * p.own, column, p.own, p.scale * dk[j][2 * r],
                     p.scale * dk[j][2 * r + 1], p.vectors);
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (p.shared_parts != nullptr && column + e >= p.own && column + e < p.d_qk)
            p.shared_parts[(static_cast<i64>(kv) * p.keys + row) * p.shared + column + e - p.own] =
                p.scale * dk[j][2 * r + e];
      }
    }
  }
}

}  // namespace moeplan::cuda::attention
