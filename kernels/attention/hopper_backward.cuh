#pragma once
/// Backward on Hopper, two kernels as in backward.cuh so that every sum has one owner and one order. Both keep the
/// softmax and its gradient in registers from one product to the next: `hopper_backward_q` has 128 queries, 64 a
/// warpgroup, and walks the keys; `hopper_backward_k` has 128 keys and walks the queries of all heads of the group with
/// transposed logits, so that p^T and dz^T are left operands as they lie in the accumulators. Seven products of the
/// size of q k^T where one pass with a shared dq would do five.

#include "kernels/attention/hopper.cuh"

namespace moeplan::cuda::attention {

struct BackwardBarriers {
  ptx::Barrier fixed, full[2][5], empty[2][5];  ///< rings: of keys and of values, or of queries only
};

/// `q_held`, `g_held`: queries or their output gradients stay in registers. Shared memory is what limits these kernels:
/// with 64 rows from it a product of n columns reads 2 KB + 32 n B in n / 2 cycles, of the 128 B a cycle that there
/// are; with rows held, half of that.
template <int qk_, int v_, int keys_, int stages_, bool q_held_ = false, bool g_held_ = false>
struct BackwardQTile {
  static constexpr bool q_held = q_held_, g_held = g_held_;
  static constexpr int qk = qk_, v = v_, keys = keys_, stages = stages_;
  static constexpr bool waits = qk == 64;  ///< as in BackwardKTile
  static constexpr int q_bytes = block_rows * qk * 2, g_bytes = block_rows * v * 2, k_bytes = keys * qk * 2,
                       v_bytes = keys * v * 2;
  static constexpr std::size_t shared_bytes =
      1024 + q_bytes + g_bytes + stages * (k_bytes + v_bytes) + sizeof(BackwardBarriers);
};

template <class Tile>
__global__ void __launch_bounds__(hopper_threads, 1)
    hopper_backward_q(const __grid_constant__ Maps maps, const __grid_constant__ Problem p) {
  extern __shared__ char dynamic_shared[];
  char* memory = aligned_memory(dynamic_shared);
  char *g_memory = memory + Tile::q_bytes, *k_ring = g_memory + Tile::g_bytes,
       *v_ring = k_ring + Tile::stages * Tile::k_bytes;
  auto& barriers = *reinterpret_cast<BackwardBarriers*>(v_ring + Tile::stages * Tile::v_bytes);
  constexpr int n = Tile::keys;
  const int tiles = slots(p.queries, p.sequences, block_rows);
  const auto [head, slot] = place(p, p.heads, tiles);
  const int kv = head / p.group;
  int at_row;
  const Sequence s = sequence(p, find_slot<block_rows, true>(p, tiles - 1 - slot, at_row));
  if (at_row >= s.queries) return;
  const int first_at = p.missing + at_row, last_at = min(first_at + block_rows, s.keys) - 1;
  const int first_tile = first_seen(p, first_at) / n, end_tile = (end_seen(p, last_at, s.keys) + n - 1) / n;
  if (threadIdx.x == 0) {
    ptx::barrier_init(&barriers.fixed, 1);
    for (int i = 0; i < 2 * Tile::stages; ++i) {
      ptx::barrier_init(&barriers.full[i % 2][i / 2], 1);
      ptx::barrier_init(&barriers.empty[i % 2][i / 2], 8);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    ptx::registers_release<24>();
    if (threadIdx.x != 0) return;
    ptx::barrier_arrive_expect(&barriers.fixed, Tile::q_bytes + Tile::g_bytes);
    load_panels<block_rows, Tile::qk>(memory, &maps.q, head, s.first_query + at_row, &barriers.fixed);
    load_panels<block_rows, Tile::v>(g_memory, &maps.dy, head, s.first_query + at_row, &barriers.fixed);
    ptx::RingPosition<Tile::stages> at{0, 1};
    for (int tile = end_tile - 1; tile >= first_tile; --tile, at.advance()) {
      ptx::barrier_wait(&barriers.empty[0][at.stage], at.parity);
      ptx::barrier_arrive_expect(&barriers.full[0][at.stage], Tile::k_bytes);
      load_key_panels<n, Tile::qk>(k_ring + at.stage * Tile::k_bytes, maps, p, kv, s.first_key + tile * n,
                                   &barriers.full[0][at.stage]);
      ptx::barrier_wait(&barriers.empty[1][at.stage], at.parity);
      ptx::barrier_arrive_expect(&barriers.full[1][at.stage], Tile::v_bytes);
      load_panels<n, Tile::v>(v_ring + at.stage * Tile::v_bytes, &maps.v, kv, s.first_key + tile * n,
                              &barriers.full[1][at.stage]);
    }
    return;
  }
  ptx::registers_acquire<240>();
  const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const bool elected = lane == 0;
  const std::uint32_t q_tile = ptx::shared_address(memory) + group * group_rows * 128,
                      g_tile = ptx::shared_address(g_memory) + group * group_rows * 128;
  const std::uint32_t k_base = ptx::shared_address(k_ring), v_base = ptx::shared_address(v_ring);
  const float unit = p.scale * log2_e;
  int at[2];
  float lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    at[r] = first_at + group * group_rows + warp * 16 + lane / 4 + 8 * r;
    const bool inside = at[r] < s.keys;
    const i64 row = static_cast<i64>(head) * p.queries + s.first_query + at[r] - p.missing;
    lse[r] = inside ? p.lse_rows[row] : INFINITY, delta[r] = inside ? p.delta_rows[row] : 0;
  }
  float dq[Tile::qk / 2] = {}, z[n / 2], dp[n / 2];
  std::uint32_t dz[n / 16][4];
  ptx::RingPosition<Tile::stages> now{};
  std::uint32_t previous = 0;
  ptx::barrier_wait(&barriers.fixed, 0);
  std::uint32_t q_left[Tile::q_held ? Tile::qk / 16 : 1][4], g_left[Tile::g_held ? Tile::v / 16 : 1][4];
  if constexpr (Tile::q_held)
    load_left<block_rows, Tile::qk>(q_left, ptx::shared_address(memory), group * group_rows + warp * 16);
  if constexpr (Tile::g_held)
    load_left<block_rows, Tile::v>(g_left, ptx::shared_address(g_memory), group * group_rows + warp * 16);
#pragma unroll 1
  for (int tile = end_tile - 1; tile >= first_tile; --tile) {
    ptx::barrier_wait(&barriers.full[0][now.stage], now.parity);
    ptx::wgmma_begin();
    if constexpr (Tile::q_held)
      wgmma_left_rows<n, Tile::qk>(z, q_left, k_base + now.stage * Tile::k_bytes);
    else
      wgmma_rows<block_rows, n, Tile::qk>(z, q_tile, k_base + now.stage * Tile::k_bytes);
    ptx::wgmma_commit();
    ptx::barrier_wait(&barriers.full[1][now.stage], now.parity);
    ptx::wgmma_begin();
    if constexpr (Tile::g_held)
      wgmma_left_rows<n, Tile::v>(dp, g_left, v_base + now.stage * Tile::v_bytes);
    else
      wgmma_rows<block_rows, n, Tile::v>(dp, g_tile, v_base + now.stage * Tile::v_bytes);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();  // the logits, and the sum over the tile before
    ptx::wgmma_touch(z);
    if (elected && tile != end_tile - 1) ptx::barrier_arrive(&barriers.empty[0][previous]);
    const int key = tile * n;
    if (partly_hidden(p, first_at, first_at + block_rows - 1, key, key + n - 1, s.keys)) {
      const int column = key + lane % 4 * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int low = first_seen(p, at[r]) - column, high = end_seen(p, at[r], s.keys) - column;
#pragma unroll
        for (int j = 0; j < n / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (8 * j + e < low || 8 * j + e >= high) z[4 * j + 2 * r + e] = -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < n / 2; ++i) z[i] = power_of_two(fmaf(z[i], unit, -lse[i / 2 % 2]));
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(dp);
    if (elected) ptx::barrier_arrive(&barriers.empty[1][now.stage]);
#pragma unroll
    for (int i = 0; i < n / 2; ++i) z[i] *= dp[i] - delta[i / 2 % 2];
    wgmma_left<n>(z, dz);
    ptx::wgmma_begin();
    wgmma_columns<n, Tile::qk>(dq, dz, k_base + now.stage * Tile::k_bytes);
    ptx::wgmma_commit();
    if constexpr (Tile::waits) {
      ptx::wgmma_wait<0>();
      ptx::wgmma_touch(dq);
    }
    previous = now.stage;
    now.advance();
  }
  ptx::wgmma_wait<0>();
  ptx::wgmma_touch(dq);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = at[r] - p.missing;
    if (row >= s.queries) continue;
    bf16* to = p.dq + ((s.first_query + static_cast<i64>(row)) * p.heads + head) * p.d_qk;
#pragma unroll
    for (int j = 0; j < Tile::qk / 8; ++j)
      store_pair(to, 8 * j + lane % 4 * 2, p.d_qk, p.scale * dq[4 * j + 2 * r], p.scale * dq[4 * j + 2 * r + 1], true);
  }
}

/// `keys`, `values`: which of dk and dv; heads wider than 192 do one after the other, for the accumulators of both fill
/// the registers.
template <int qk_, int v_, int queries_, int stages_, bool keys_ = true, bool values_ = true, bool k_held_ = false,
          bool v_held_ = false>
struct BackwardKTile {
  static constexpr bool k_held = k_held_, v_held = v_held_;  ///< keys or values stay in registers
  static constexpr bool keys = keys_, values = values_;
  static constexpr int qk = qk_, v = v_, queries = queries_, stages = stages_;
  static constexpr bool waits =
      qk == 64 || (keys * qk + values * v + k_held * qk / 2 + v_held * v / 2 + 3 * queries) / 2 >
                      210;  ///< no sums under the next tile's logits: no registers left, or ptxas moves accumulators
                            ///< and then serialises every product
  static constexpr int k_bytes = block_rows * qk * 2, v_bytes = block_rows * v * 2, q_bytes = queries * qk * 2,
                       g_bytes = queries * v * 2;
  static constexpr std::size_t shared_bytes =
      1024 + k_bytes + v_bytes + stages * (q_bytes + g_bytes + 8 * queries) + sizeof(BackwardBarriers);
};

template <class Tile>
__global__ void __launch_bounds__(hopper_threads, 1)
    hopper_backward_k(const __grid_constant__ Maps maps, const __grid_constant__ Problem p) {
  extern __shared__ char dynamic_shared[];
  char* memory = aligned_memory(dynamic_shared);
  char *v_memory = memory + Tile::k_bytes, *q_ring = v_memory + Tile::v_bytes,
       *g_ring = q_ring + Tile::stages * Tile::q_bytes;
  constexpr int n = Tile::queries;
  float* rows =
      reinterpret_cast<float*>(g_ring + Tile::stages * Tile::g_bytes);  // [stages, 2, queries]: log-sum-exps, deltas
  auto& barriers = *reinterpret_cast<BackwardBarriers*>(rows + Tile::stages * 2 * n);
  const int tiles = slots(p.keys, p.sequences, block_rows);
  const auto [kv, slot] = place(p, p.kv_heads, tiles);
  int key;  // the tile's first key in its sequence; the first keys are seen by most
  const Sequence s = sequence(p, find_slot<block_rows, false>(p, slot, key));
  if (key >= s.keys) return;
  int first, end;
  seers(p, key, min(key + block_rows, s.keys) - 1, s.keys, first, end);
  if (threadIdx.x == 0) {
    ptx::barrier_init(&barriers.fixed, 1);
    for (int i = 0; i < Tile::stages; ++i) {
      ptx::barrier_init(&barriers.full[0][i], 1 + 32);
      ptx::barrier_init(&barriers.empty[0][i], 256);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    ptx::registers_release<24>();
    if (threadIdx.x >= 64) return;
    const bool loads_tiles = threadIdx.x == 0, loads_rows = threadIdx.x >= 32;
    if (!loads_tiles && !loads_rows) return;
    if (loads_tiles) {
      ptx::barrier_arrive_expect(&barriers.fixed, Tile::k_bytes + Tile::v_bytes);
      load_key_panels<block_rows, Tile::qk>(memory, maps, p, kv, s.first_key + key, &barriers.fixed);
      load_panels<block_rows, Tile::v>(v_memory, &maps.v, kv, s.first_key + key, &barriers.fixed);
    }
    ptx::RingPosition<Tile::stages> at{0, 1};
    for (int head = kv * p.group; head < (kv + 1) * p.group; ++head)
      for (int row = first; row < end; row += n, at.advance()) {
        ptx::barrier_wait(&barriers.empty[0][at.stage], at.parity);
        const int query = s.first_query + row - p.missing;
        ptx::Barrier* full = &barriers.full[0][at.stage];
        if (loads_tiles) {
          ptx::barrier_arrive_expect(full, Tile::q_bytes + Tile::g_bytes);
          load_panels<n, Tile::qk>(q_ring + at.stage * Tile::q_bytes, &maps.q, head, query, full);
          load_panels<n, Tile::v>(g_ring + at.stage * Tile::g_bytes, &maps.dy, head, query, full);
        } else {  // rows past the sequence weigh nothing
          for (int i = threadIdx.x - 32; i < n; i += 32) {
            const i64 from = static_cast<i64>(head) * p.queries + query + i;
            const bool inside = row + i < s.keys;
            rows[at.stage * 2 * n + i] = inside ? p.lse_rows[from] : INFINITY;
            rows[at.stage * 2 * n + n + i] = inside ? p.delta_rows[from] : 0;
          }
          ptx::barrier_arrive(full);
        }
      }
    return;
  }
  ptx::registers_acquire<240>();
  const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const std::uint32_t k_tile = ptx::shared_address(memory) + group * group_rows * 128,
                      v_tile = ptx::shared_address(v_memory) + group * group_rows * 128;
  const std::uint32_t q_base = ptx::shared_address(q_ring), g_base = ptx::shared_address(g_ring);
  const float unit = p.scale * log2_e;
  const int mine = key + group * group_rows + warp * 16 + lane / 4;
  float dk[Tile::keys ? Tile::qk / 2 : 1] = {}, dv[Tile::values ? Tile::v / 2 : 1] = {}, z[n / 2],
                                       dp[Tile::keys ? n / 2 : 1];
  std::uint32_t weights[n / 16][4], dz[n / 16][4];
  ptx::RingPosition<Tile::stages> now{};
  std::uint32_t previous = Tile::stages;
  ptx::barrier_wait(&barriers.fixed, 0);
  std::uint32_t k_left[Tile::k_held ? Tile::qk / 16 : 1][4], v_left[Tile::v_held ? Tile::v / 16 : 1][4];
  if constexpr (Tile::v_held)
    load_left<block_rows, Tile::v>(v_left, ptx::shared_address(v_memory), group * group_rows + warp * 16);
  if constexpr (Tile::k_held)
    load_left<block_rows, Tile::qk>(k_left, ptx::shared_address(memory), group * group_rows + warp * 16);
#pragma unroll 1
  for (int head = 0; head < p.group; ++head)
#pragma unroll 1
    for (int row = first; row < end; row += n) {
      ptx::barrier_wait(&barriers.full[0][now.stage], now.parity);
      const std::uint32_t q_tile = q_base + now.stage * Tile::q_bytes, g_tile = g_base + now.stage * Tile::g_bytes;
      const float* column_rows =
          rows + now.stage * 2 * n + lane % 4 * 2;  // read in pairs: single words would take an eighth of the bandwidth
      ptx::wgmma_begin();
      if constexpr (Tile::k_held)
        wgmma_left_rows<n, Tile::qk>(z, k_left, q_tile);
      else
        wgmma_rows<block_rows, n, Tile::qk>(z, k_tile, q_tile);
      ptx::wgmma_commit();
      if constexpr (Tile::keys && Tile::v_held)
        wgmma_left_rows<n, Tile::v>(dp, v_left, g_tile);
      else if constexpr (Tile::keys)
        wgmma_rows<block_rows, n, Tile::v>(dp, v_tile, g_tile);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();  // the logits, and the sums over the tile before
      ptx::wgmma_touch(z);
      // Every thread says that it has read its row values of the tile before: racecheck does not follow one lane that speaks for its warp.
      if (previous != Tile::stages) ptx::barrier_arrive(&barriers.empty[0][previous]);
      if ((p.causal && key + block_rows - 1 > row) || (p.window < s.keys && row + n - 1 - key >= p.window)) {
        const int column = row + lane % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int low = p.causal ? mine + 8 * r - column : INT_MIN,
                    high = p.window < s.keys ? mine + 8 * r + p.window - column : INT_MAX;
#pragma unroll
          for (int j = 0; j < n / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (8 * j + e < low || 8 * j + e >= high) z[4 * j + 2 * r + e] = -INFINITY;
        }
      }
#pragma unroll
      for (int j = 0; j < n / 8; ++j) {
        const float2 lse = *reinterpret_cast<const float2*>(column_rows + 8 * j);
#pragma unroll
        for (int e = 0; e < 4; ++e) z[4 * j + e] = power_of_two(fmaf(z[4 * j + e], unit, e % 2 == 0 ? -lse.x : -lse.y));
      }
      if constexpr (Tile::keys) {
        ptx::wgmma_wait<0>();
        ptx::wgmma_touch(dp);
      }
      // Both operands are packed side by side, so that no fp32 value outlives its use.
#pragma unroll
      for (int j = 0; j < n / 8; ++j) {
        if constexpr (Tile::values) {
          weights[j / 2][j % 2 * 2] = ptx::pack_bf16(z[4 * j], z[4 * j + 1]);
          weights[j / 2][j % 2 * 2 + 1] = ptx::pack_bf16(z[4 * j + 2], z[4 * j + 3]);
        }
        if constexpr (Tile::keys) {
          const float2 delta = *reinterpret_cast<const float2*>(column_rows + n + 8 * j);
          dz[j / 2][j % 2 * 2] =
              ptx::pack_bf16(z[4 * j] * (dp[4 * j] - delta.x), z[4 * j + 1] * (dp[4 * j + 1] - delta.y));
          dz[j / 2][j % 2 * 2 + 1] =
              ptx::pack_bf16(z[4 * j + 2] * (dp[4 * j + 2] - delta.x), z[4 * j + 3] * (dp[4 * j + 3] - delta.y));
        }
      }
      ptx::wgmma_begin();  // both sums at the end: issuing dv before dp is used costs registers that are not there
      if constexpr (Tile::values) wgmma_columns<n, Tile::v>(dv, weights, g_tile);
      if constexpr (Tile::keys) wgmma_columns<n, Tile::qk>(dk, dz, q_tile);
      ptx::wgmma_commit();
      if constexpr (Tile::waits) {
        ptx::wgmma_wait<0>();
        if constexpr (Tile::keys) ptx::wgmma_touch(dk);
        if constexpr (Tile::values) ptx::wgmma_touch(dv);
      }
      previous = now.stage;
      now.advance();
    }
  ptx::wgmma_wait<0>();
  if constexpr (Tile::keys) ptx::wgmma_touch(dk);
  if constexpr (Tile::values) ptx::wgmma_touch(dv);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (mine + 8 * r >= s.keys) continue;
    const i64 row = s.first_key + mine + 8 * r;
    if (Tile::values && p.dv != nullptr) {
      bf16* to = p.dv + (row * p.kv_heads + kv) * p.d_v;
#pragma unroll
      for (int j = 0; j < Tile::v / 8; ++j)
        store_pair(to, 8 * j + lane % 4 * 2, p.d_v, dv[4 * j + 2 * r], dv[4 * j + 2 * r + 1], true);
    }
#pragma unroll
    for (int j = 0; j < (Tile::keys ? Tile::qk / 8 : 0); ++j) {
      const int column = 8 * j + lane % 4 * 2;
      const float a = p.scale * dk[4 * j + 2 * r], b = p.scale * dk[4 * j + 2 * r + 1];
      if (p.dk != nullptr) store_pair(p.dk + (row * p.kv_heads + kv) * p.own, column, p.own, a, b, true);
      if (p.shared_parts != nullptr && column >= p.own && column < p.d_qk)  // both are even
        *reinterpret_cast<float2*>(p.shared_parts + (static_cast<i64>(kv) * p.keys + row) * p.shared + column - p.own) =
            float2{a, b};
    }
  }
}

}  // namespace moeplan::cuda::attention
