/// \file
/// Heads of 257 to 512 columns: the kernels of forward.cuh and backward.cuh with the results' columns dealt out, 128 to
/// a block, since the accumulators of 512 do not fit the registers. Each of the up to four blocks makes the logits
/// again: forward (4 d_qk + d_v) / (d_qk + d_v) of the operations, backward 4 times those of the logits.

#include "kernels/attention/forward.cuh"
#include "kernels/attention/launch.cuh"
#include "kernels/attention/wide.hpp"
#include "kernels/shared_memory.hpp"

namespace moeplan::cuda::attention {
namespace {

constexpr int head = 512, slice = 128, stream_rows = 32;
constexpr std::size_t forward_bytes_wide = 2 * (query_rows * head + key_rows * (head + slice));
constexpr std::size_t backward_bytes_wide = 2 * 2 * (query_rows + stream_rows) * head + 8 * stream_rows;
static_assert(shared_memory::wide_attention == backward_bytes_wide && forward_bytes_wide <= backward_bytes_wide);

[[nodiscard]] __host__ __device__ constexpr int slices(int columns) { return (columns + slice - 1) / slice; }
/// A tile's panels from column `from` on, a multiple of 64.
template <int rows>
__device__ __forceinline__ std::uint32_t columns_from(std::uint32_t tile, int from) {
  return tile + static_cast<std::uint32_t>(from / 64 * rows * 128);
}
__device__ __forceinline__ void store_slice(bf16* row, const float (&d)[slice / 8][4], int r, int from, int width,
                                            float scale, bool vectors) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < slice / 8; ++j)
    store_pair(row, from + 8 * j + lane % 4 * 2, width, scale * d[j][2 * r], scale * d[j][2 * r + 1], vectors);
}

template <bool capped>
__global__ void __launch_bounds__(tile_threads) wide_forward(const Problem p) {
  extern __shared__ __align__(1024) char memory[];
  const int tiles = slots(p.queries, p.sequences, query_rows), parts = slices(p.d_v);
  const int from = static_cast<int>(blockIdx.x) % parts * slice, rest = static_cast<int>(blockIdx.x) / parts;
  const int mine = rest % p.heads, slot = rest / p.heads;
  int at_row;
  const Sequence s = sequence(p, find_slot<query_rows, true>(p, tiles - 1 - slot, at_row));
  if (at_row >= s.queries) return;
  const std::uint32_t q_tile = ptx::shared_address(memory), k_tile = q_tile + 2 * query_rows * head,
                      v_tile = k_tile + 2 * key_rows * head;
  const int kv = mine / p.group, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Rows q{p.q + mine * p.d_qk, static_cast<i64>(p.heads) * p.d_qk, p.d_qk};
  const Rows k{p.k + kv * p.d_qk, static_cast<i64>(p.kv_heads) * p.d_qk, p.d_qk};
  const Rows v{p.v + kv * p.d_v + from, static_cast<i64>(p.kv_heads) * p.d_v, min(slice, p.d_v - from)};
  const i64 end = s.first_key + s.keys;
  const int first_at = p.missing + at_row, last_at = min(first_at + query_rows, s.keys) - 1;
  const int first_tile = first_seen(p, first_at) / key_rows,
            end_tile = (end_seen(p, last_at, s.keys) + key_rows - 1) / key_rows;
  load_tile<query_rows, head, tile_threads>(q_tile, q, s.first_query + at_row, s.first_query + s.queries, p.vectors);
  const int at[2] = {first_at + warp * 16 + lane / 4, first_at + warp * 16 + lane / 4 + 8};
  const float sink = p.sinks != nullptr ? p.sinks[mine] * log2_e : -INFINITY;
  float most[2] = {sink, sink}, sum[2] = {};
  float out[slice / 8][4] = {};
#pragma unroll 1
  for (int tile = first_tile; tile < end_tile; ++tile) {
    load_tile<key_rows, head, tile_threads>(k_tile, k, s.first_key + tile * key_rows, end, p.vectors);
    load_tile<key_rows, slice, tile_threads>(v_tile, v, s.first_key + tile * key_rows, end, p.vectors);
    ptx::copy_commit();
    ptx::copy_wait<0>();
    __syncthreads();
    float z[key_rows / 8][4] = {};
    multiply_rows<query_rows, key_rows, head>(z, q_tile, warp * 16, k_tile);
    const int key = tile * key_rows;
    const bool masked = partly_hidden(p, first_at, first_at + query_rows - 1, key, key + key_rows - 1, s.keys);
    weigh_tile<capped>(p, z, most, sum, out, masked, at, key, s.keys);
    std::uint32_t weights[key_rows / 16][4];
    as_left<key_rows>(z, weights);
    multiply_columns<key_rows, slice>(out, weights, v_tile);
    __syncthreads();  // nobody reads this tile any more
  }
  ptx::copy_wait<0>();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
    sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    if (p.sinks != nullptr) sum[r] += power_of_two(sink - most[r]);
    const int row = at[r] - p.missing;
    if (row >= s.queries) continue;
    const i64 query = s.first_query + row;
    if (lane % 4 == 0 && from == 0) p.lse[query * p.heads + mine] = (most[r] + log2f(sum[r])) / log2_e;
    store_slice(p.y + (query * p.heads + mine) * p.d_v, out, r, from, p.d_v, 1 / sum[r], p.vectors);
  }
}

template <bool capped>
__global__ void __launch_bounds__(tile_threads) wide_backward_q(const Problem p) {
  extern __shared__ __align__(1024) char memory[];
  constexpr int n = stream_rows;
  const int tiles = slots(p.queries, p.sequences, query_rows), parts = slices(p.d_qk);
  const int from = static_cast<int>(blockIdx.x) % parts * slice, rest = static_cast<int>(blockIdx.x) / parts;
  const int mine = rest % p.heads, slot = rest / p.heads;
  int at_row;
  const Sequence s = sequence(p, find_slot<query_rows, true>(p, tiles - 1 - slot, at_row));
  if (at_row >= s.queries) return;
  const std::uint32_t q_tile = ptx::shared_address(memory), g_tile = q_tile + 2 * query_rows * head,
                      k_tile = g_tile + 2 * query_rows * head, v_tile = k_tile + 2 * n * head;
  const int kv = mine / p.group, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Rows q{p.q + mine * p.d_qk, static_cast<i64>(p.heads) * p.d_qk, p.d_qk};
  const Rows g{p.dy + mine * p.d_v, static_cast<i64>(p.heads) * p.d_v, p.d_v};
  const Rows k{p.k + kv * p.d_qk, static_cast<i64>(p.kv_heads) * p.d_qk, p.d_qk};
  const Rows v{p.v + kv * p.d_v, static_cast<i64>(p.kv_heads) * p.d_v, p.d_v};
  const i64 end = s.first_key + s.keys;
  const int first_at = p.missing + at_row, last_at = min(first_at + query_rows, s.keys) - 1;
  const int first_tile = first_seen(p, first_at) / n, end_tile = (end_seen(p, last_at, s.keys) + n - 1) / n;
  load_tile<query_rows, head, tile_threads>(q_tile, q, s.first_query + at_row, s.first_query + s.queries, p.vectors);
  load_tile<query_rows, head, tile_threads>(g_tile, g, s.first_query + at_row, s.first_query + s.queries, p.vectors);
  int at[2];
  float lse[2] = {}, delta[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    at[r] = first_at + warp * 16 + lane / 4 + 8 * r;
    const i64 row = static_cast<i64>(mine) * p.queries + s.first_query + at[r] - p.missing;
    if (at[r] < s.keys) lse[r] = p.lse_rows[row], delta[r] = p.delta_rows[row];
  }
  float dq[slice / 8][4] = {};
#pragma unroll 1
  for (int tile = first_tile; tile < end_tile; ++tile) {
    load_tile<n, head, tile_threads>(k_tile, k, s.first_key + tile * n, end, p.vectors);
    load_tile<n, head, tile_threads>(v_tile, v, s.first_key + tile * n, end, p.vectors);
    ptx::copy_commit();
    ptx::copy_wait<0>();
    __syncthreads();
    float z[n / 8][4] = {}, dp[n / 8][4] = {};
    multiply_rows<query_rows, n, head>(z, q_tile, warp * 16, k_tile);
    multiply_rows<query_rows, n, head>(dp, g_tile, warp * 16, v_tile);
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
    multiply_columns<n, slice>(dq, dz, columns_from<n>(k_tile, from));
    __syncthreads();  // nobody reads keys and values any more
  }
  ptx::copy_wait<0>();
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (const int row = at[r] - p.missing; row < s.queries)
      store_slice(p.dq + ((s.first_query + static_cast<i64>(row)) * p.heads + mine) * p.d_qk, dq, r, from, p.d_qk,
                  p.scale, p.vectors);
}

template <bool capped>
__global__ void __launch_bounds__(tile_threads) wide_backward_k(const Problem p) {
  extern __shared__ __align__(1024) char memory[];
  constexpr int n = stream_rows;
  const int parts = slices(max(p.d_qk, p.d_v));
  const int from = static_cast<int>(blockIdx.x) % parts * slice, rest = static_cast<int>(blockIdx.x) / parts;
  const int kv = rest % p.kv_heads, slot = rest / p.kv_heads;
  int key;
  const Sequence s = sequence(p, find_slot<key_rows, false>(p, slot, key));
  if (key >= s.keys) return;
  const std::uint32_t k_tile = ptx::shared_address(memory), v_tile = k_tile + 2 * key_rows * head,
                      q_tile = v_tile + 2 * key_rows * head, g_tile = q_tile + 2 * n * head;
  float* lse = reinterpret_cast<float*>(memory + 2 * 2 * (key_rows + n) * head);
  float* delta = lse + n;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Rows k{p.k + kv * p.d_qk, static_cast<i64>(p.kv_heads) * p.d_qk, p.d_qk};
  const Rows v{p.v + kv * p.d_v, static_cast<i64>(p.kv_heads) * p.d_v, p.d_v};
  load_tile<key_rows, head, tile_threads>(k_tile, k, s.first_key + key, s.first_key + s.keys, p.vectors);
  load_tile<key_rows, head, tile_threads>(v_tile, v, s.first_key + key, s.first_key + s.keys, p.vectors);
  int first, end;
  seers(p, key, min(key + key_rows, s.keys) - 1, s.keys, first, end);
  const int mine = key + warp * 16 + lane / 4;
  float dk[slice / 8][4] = {}, dv[slice / 8][4] = {};
#pragma unroll 1
  for (int query_head = kv * p.group; query_head < (kv + 1) * p.group; ++query_head) {
    const Rows q{p.q + query_head * p.d_qk, static_cast<i64>(p.heads) * p.d_qk, p.d_qk};
    const Rows g{p.dy + query_head * p.d_v, static_cast<i64>(p.heads) * p.d_v, p.d_v};
#pragma unroll 1
    for (int at = first; at < end; at += n) {
      const i64 query = s.first_query + at - p.missing, last = s.first_query + s.queries;
      load_tile<n, head, tile_threads>(q_tile, q, query, last, p.vectors);
      load_tile<n, head, tile_threads>(g_tile, g, query, last, p.vectors);
      ptx::copy_commit();
      for (int i = threadIdx.x; i < n; i += tile_threads) {
        const bool valid = query + i < last;
        const i64 row = static_cast<i64>(query_head) * p.queries + query + i;
        lse[i] = valid ? p.lse_rows[row] : 0, delta[i] = valid ? p.delta_rows[row] : 0;
      }
      ptx::copy_wait<0>();
      __syncthreads();
      float z[n / 8][4] = {}, dp[n / 8][4] = {};
      multiply_rows<key_rows, n, head>(z, k_tile, warp * 16, q_tile);
      multiply_rows<key_rows, n, head>(dp, v_tile, warp * 16, g_tile);
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
          dp[j][e] = w * one.slope * (dp[j][e] - delta[i]);
        }
      std::uint32_t left[n / 16][4];
      as_left<n>(z, left);
      multiply_columns<n, slice>(dv, left, columns_from<n>(g_tile, from));
      as_left<n>(dp, left);
      multiply_columns<n, slice>(dk, left, columns_from<n>(q_tile, from));
      __syncthreads();  // nobody reads this tile any more
    }
  }
  ptx::copy_wait<0>();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (mine + 8 * r >= s.keys) continue;
    const i64 row = (s.first_key + static_cast<i64>(mine) + 8 * r) * p.kv_heads + kv;
    if (p.dv != nullptr) store_slice(p.dv + row * p.d_v, dv, r, from, p.d_v, 1, p.vectors);
    if (p.dk != nullptr) store_slice(p.dk + row * p.d_qk, dk, r, from, p.d_qk, p.scale, p.vectors);
  }
}

void run(void (*plain)(Problem), void (*capped)(Problem), const Problem& p, std::int64_t blocks, std::size_t bytes,
         const char* name, cudaStream_t stream) {
  launch(p.cap > 0 ? capped : plain, blocks, tile_threads, bytes, stream, name, shape(p), p);
}

}  // namespace

void forward_wide(const Problem& p, cudaStream_t stream) {
  run(wide_forward<false>, wide_forward<true>, p,
      static_cast<std::int64_t>(slots(p.queries, p.sequences, query_rows)) * p.heads * slices(p.d_v),
      forward_bytes_wide, "attention forward of wide heads", stream);
}
void backward_wide_q(const Problem& p, cudaStream_t stream) {
  run(wide_backward_q<false>, wide_backward_q<true>, p,
      static_cast<std::int64_t>(slots(p.queries, p.sequences, query_rows)) * p.heads * slices(p.d_qk),
      backward_bytes_wide, "attention backward of queries of wide heads", stream);
}
void backward_wide_k(const Problem& p, cudaStream_t stream) {
  run(wide_backward_k<false>, wide_backward_k<true>, p,
      static_cast<std::int64_t>(slots(p.keys, p.sequences, key_rows)) * p.kv_heads * slices(std::max(p.d_qk, p.d_v)),
      backward_bytes_wide, "attention backward of keys and values of wide heads", stream);
}

}  // namespace moeplan::cuda::attention
