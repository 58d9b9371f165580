#pragma once
/// Forward on Hopper: a block has 128 queries of one head, 64 a warpgroup; one thread of a third warpgroup loads by
/// tensor copies, two stages deep. The logits of the next tile and the sum over the present one are on the tensor cores
/// while the softmax of the next runs, and the two warpgroups take turns at issuing, so that one's softmax lies under
/// the other's products (Shah et al. 2024, FlashAttention-3). Products read 96 of the 128 bytes a cycle that shared
/// memory gives at d = 128.

#include "kernels/attention/hopper.cuh"

namespace moeplan::cuda::attention {

template <int qk_, int v_, int keys_>
struct ForwardTile {
  static constexpr int qk = qk_, v = v_, keys = keys_, stages = 2;
  static constexpr int q_bytes = block_rows * qk * 2, k_bytes = keys * qk * 2, v_bytes = keys * v * 2;
  static constexpr std::size_t shared_bytes = 1024 + q_bytes + stages * (k_bytes + v_bytes) + 128;
};

struct ForwardBarriers {
  ptx::Barrier q, k_full[2], k_empty[2], v_full[2], v_empty[2];
};

/// Softmax state of the two rows of a thread; `most` in units of the raw dot product.
struct Running {
  float most[2], sum[2];
};

/// Turns the dot products of a tile into weights against the new maximum, and gives the factors of what was summed
/// before.
template <int n>
__device__ __forceinline__ void soften(const Problem& p, float (&z)[n / 2], Running& run, float (&shrink)[2],
                                       bool masked, const int (&at)[2], int key, int keys) {
  const float unit = p.scale * log2_e;
  if (masked) {
    const int column = key + threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int low = first_seen(p, at[r]) - column, high = end_seen(p, at[r], keys) - column;
#pragma unroll
      for (int j = 0; j < n / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * j + e < low || 8 * j + e >= high) z[4 * j + 2 * r + e] = -INFINITY;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float now = run.most[r];
#pragma unroll
    for (int j = 0; j < n / 8; ++j) now = fmaxf(now, fmaxf(z[4 * j + 2 * r], z[4 * j + 2 * r + 1]));
    now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
    now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
    const float base = now == -INFINITY ? 0 : now * unit;  // nothing seen so far
    shrink[r] = power_of_two(fmaf(run.most[r], unit, -base));
    run.most[r] = now;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < n / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float w = power_of_two(fmaf(z[4 * j + 2 * r + e], unit, -base));
        z[4 * j + 2 * r + e] = w, sum += w;
      }
    run.sum[r] = fmaf(run.sum[r], shrink[r], sum);
  }
}

template <class Tile>
__global__ void __launch_bounds__(hopper_threads, 1)
    hopper_forward(const __grid_constant__ Maps maps, const __grid_constant__ Problem p) {
  extern __shared__ char dynamic_shared[];
  char* memory = aligned_memory(dynamic_shared);
  char *k_ring = memory + Tile::q_bytes, *v_ring = k_ring + Tile::stages * Tile::k_bytes;
  auto& barriers = *reinterpret_cast<ForwardBarriers*>(v_ring + Tile::stages * Tile::v_bytes);
  constexpr int n = Tile::keys;
  const int tiles = slots(p.queries, p.sequences, block_rows);
  const auto [head, slot] = place(p, p.heads, tiles);
  const int kv = head / p.group;
  int at_row;  // of the tile in its sequence's queries; long rows first
  const Sequence s = sequence(p, find_slot<block_rows, true>(p, tiles - 1 - slot, at_row));
  if (at_row >= s.queries) return;
  const int first_at = p.missing + at_row, last_at = min(first_at + block_rows, s.keys) - 1;
  const int first_tile = first_seen(p, first_at) / n, end_tile = (end_seen(p, last_at, s.keys) + n - 1) / n;
  if (threadIdx.x == 0) {
    ptx::barrier_init(&barriers.q, 1);
    for (int i = 0; i < Tile::stages; ++i) {
      ptx::barrier_init(&barriers.k_full[i], 1), ptx::barrier_init(&barriers.v_full[i], 1);
      ptx::barrier_init(&barriers.k_empty[i], 8), ptx::barrier_init(&barriers.v_empty[i], 8);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    ptx::registers_release<24>();
    if (threadIdx.x != 0) return;
    ptx::barrier_arrive_expect(&barriers.q, Tile::q_bytes);
    load_panels<block_rows, Tile::qk>(memory, &maps.q, head, s.first_query + at_row, &barriers.q);
    ptx::RingPosition<Tile::stages> at{0, 1};
    for (int tile = end_tile - 1; tile >= first_tile; --tile, at.advance()) {
      ptx::barrier_wait(&barriers.k_empty[at.stage], at.parity);
      ptx::barrier_arrive_expect(&barriers.k_full[at.stage], Tile::k_bytes);
      load_key_panels<n, Tile::qk>(k_ring + at.stage * Tile::k_bytes, maps, p, kv, s.first_key + tile * n,
                                   &barriers.k_full[at.stage]);
      ptx::barrier_wait(&barriers.v_empty[at.stage], at.parity);
      ptx::barrier_arrive_expect(&barriers.v_full[at.stage], Tile::v_bytes);
      load_panels<n, Tile::v>(v_ring + at.stage * Tile::v_bytes, &maps.v, kv, s.first_key + tile * n,
                              &barriers.v_full[at.stage]);
    }
    return;
  }
  ptx::registers_acquire<240>();
  const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const bool elected = lane == 0;
  const int at[2] = {first_at + group * group_rows + warp * 16 + lane / 4,
                     first_at + group * group_rows + warp * 16 + lane / 4 + 8};
  const std::uint32_t q_tile = ptx::shared_address(memory) + group * group_rows * 128;
  const std::uint32_t k_base = ptx::shared_address(k_ring), v_base = ptx::shared_address(v_ring);
  const float unit = p.scale * log2_e, sink = p.sinks != nullptr ? p.sinks[head] / p.scale : -INFINITY;
  Running run{{sink, sink}, {}};
  float out[Tile::v / 2] = {}, z[n / 2], shrink[2];
  std::uint32_t weights[n / 16][4];
  const auto masked = [&](int tile) {
    return partly_hidden(p, first_at, first_at + block_rows - 1, tile * n, tile * n + n - 1, s.keys);
  };

  // Turns: a warpgroup issues when the other has issued (named barriers 1 and 2).
  if (group == 1) ptx::named_arrive(1, 256);
  ptx::barrier_wait(&barriers.q, 0);
  ptx::RingPosition<Tile::stages> k_at{}, v_at{};
  ptx::barrier_wait(&barriers.k_full[k_at.stage], k_at.parity);
  ptx::named_barrier(1 + group, 256);
  ptx::wgmma_begin();
  wgmma_rows<block_rows, n, Tile::qk>(z, q_tile, k_base);
  ptx::wgmma_commit();
  if (group == 0 || end_tile - first_tile > 1) ptx::named_arrive(2 - group, 256);
  ptx::wgmma_wait<0>();
  ptx::wgmma_touch(z);
  if (elected) ptx::barrier_arrive(&barriers.k_empty[k_at.stage]);
  k_at.advance();
  soften<n>(p, z, run, shrink, masked(end_tile - 1), at, (end_tile - 1) * n, s.keys);
  wgmma_left<n>(z, weights);
  for (int tile = end_tile - 2; tile >= first_tile; --tile) {
    ptx::barrier_wait(&barriers.k_full[k_at.stage], k_at.parity);
    ptx::named_barrier(1 + group, 256);
    ptx::wgmma_begin();
    wgmma_rows<block_rows, n, Tile::qk>(z, q_tile, k_base + k_at.stage * Tile::k_bytes);
    ptx::wgmma_commit();
    ptx::barrier_wait(&barriers.v_full[v_at.stage], v_at.parity);
    ptx::wgmma_begin();  // behind a branch again; one that the compiler put there would make every product wait
    wgmma_columns<n, Tile::v>(out, weights, v_base + v_at.stage * Tile::v_bytes);
    ptx::wgmma_commit();
    if (group == 0 || tile > first_tile) ptx::named_arrive(2 - group, 256);
    ptx::wgmma_wait<1>();
    ptx::wgmma_touch(z);
    if (elected) ptx::barrier_arrive(&barriers.k_empty[k_at.stage]);
    k_at.advance();
    soften<n>(p, z, run, shrink, masked(tile), at, tile * n, s.keys);
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(out);
    if (elected) ptx::barrier_arrive(&barriers.v_empty[v_at.stage]);
    v_at.advance();
#pragma unroll
    for (int i = 0; i < Tile::v / 2; ++i) out[i] *= shrink[i / 2 % 2];
    wgmma_left<n>(z, weights);
  }
  ptx::barrier_wait(&barriers.v_full[v_at.stage], v_at.parity);
  ptx::wgmma_begin();
  wgmma_columns<n, Tile::v>(out, weights, v_base + v_at.stage * Tile::v_bytes);
  ptx::wgmma_commit();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    run.sum[r] += __shfl_xor_sync(~0u, run.sum[r], 1);
    run.sum[r] += __shfl_xor_sync(~0u, run.sum[r], 2);
    if (p.sinks != nullptr) run.sum[r] += power_of_two((sink - run.most[r]) * unit);
  }
  ptx::wgmma_wait<0>();
  ptx::wgmma_touch(out);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = at[r] - p.missing;
    if (row >= s.queries) continue;
    const i64 query = s.first_query + row;
    if (lane % 4 == 0) p.lse[query * p.heads + head] = fmaf(run.most[r], unit, log2f(run.sum[r])) / log2_e;
    bf16* y = p.y + (query * p.heads + head) * p.d_v;
    const float inverse = 1 / run.sum[r];
#pragma unroll
    for (int j = 0; j < Tile::v / 8; ++j)
      store_pair(y, 8 * j + lane % 4 * 2, p.d_v, out[4 * j + 2 * r] * inverse, out[4 * j + 2 * r + 1] * inverse, true);
  }
}

}  // namespace moeplan::cuda::attention
