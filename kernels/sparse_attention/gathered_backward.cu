/// \file
/// Backward over gathered keys: 16 warps, 16 heads by a quarter of the keys (logits and their gradients), of the
/// columns (dq), or 16 keys by a quarter of the columns (gradients of the keys). Queries, output gradients and one tile
/// of keys fill the shared memory, so that a tile's rows arrive while nothing is multiplied.
///
/// Many queries add to one key, in no order. So that a call repeated gives the same bits, they add integers: a gradient
/// is multiplied by a power of two and rounded to 64 bits (gathered_sums.cu chooses the power so that no sum can
/// overflow), and integers add up to the same in any order.

#include "kernels/attention/launch.cuh"
#include "kernels/shared_memory.hpp"
#include "kernels/sparse_attention/gathered.cuh"

namespace moeplan::cuda::gathered {
namespace {

constexpr int threads = 512;

template <class F>
constexpr std::size_t shared_bytes = 128 * (2 * F::qk + F::v + (F::latent ? 0 : F::v) + 2 * tile_keys);
static_assert(shared_memory::latent_attention == shared_bytes<Form<true>>);

__device__ __forceinline__ void add_fixed(unsigned long long* to, float value) {
  atomicAdd(to, static_cast<unsigned long long>(__float2ll_rn(value)));
}

/// Adds a fragment of 16 keys and 16 columns from `column` on to the accumulator's rows that `table` names.
__device__ __forceinline__ void scatter(const float (&c)[2][4], const int* table, int row, int column, int width,
                                        i64 pitch, float factor, unsigned long long* to) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = table[row + lane / 4 + 8 * r];
    if (key < 0) continue;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (const int at = column + 8 * j + lane % 4 * 2 + e; at < width)
          add_fixed(to + key * pitch + at, factor * c[j][2 * r + e]);
  }
}

template <class F>
__global__ void __launch_bounds__(threads, 1) attend_backward(const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ int table[tile_keys];
  const auto [query, kv, head, heads] = place(p);
  const Keys keys = keys_of(p, query);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp % 4 * 16, quarter = warp / 4;
  const std::uint32_t q_tile = ptx::shared_address(memory), g_tile = q_tile + 128 * F::qk, k_tile = g_tile + 128 * F::v,
                      own_values = k_tile + 128 * F::qk, w_tile = own_values + (F::latent ? 0 : 128 * F::v),
                      dz_tile = w_tile + 128 * tile_keys, v_tile = F::latent ? k_tile : own_values;
  const bf16 *plain = p.plain + kv * p.d_qk, *chosen = p.chosen + kv * p.d_qk,
             *values = F::latent ? nullptr : p.values + kv * p.d_v;
  const i64 pitch = static_cast<i64>(p.kv_heads) * p.d_qk, v_pitch = static_cast<i64>(p.kv_heads) * p.d_v;
  const i64 first = static_cast<i64>(query) * p.heads + head;
  attention::load_tile<tile_heads, F::qk, threads>(q_tile, {p.q + first * p.d_qk, p.d_qk, p.d_qk}, 0, heads, p.vectors);
  attention::load_tile<tile_heads, F::v, threads>(g_tile, {p.dy + first * p.d_v, p.d_v, p.d_v}, 0, heads, p.vectors);
  ptx::copy_commit();
  const int mine[2] = {row + lane / 4, row + lane / 4 + 8};
  float lse[2] = {}, delta[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (mine[r] < heads) lse[r] = p.lse[first + mine[r]] * attention::log2_e, delta[r] = p.delta[first + mine[r]];
  const float factor = p.dkeys != nullptr ? *p.factor : 0;
  const int tiles = (keys.slots + tile_keys - 1) / tile_keys;
  int coming = threadIdx.x < tile_keys ? row_of(p, keys, query, static_cast<int>(threadIdx.x)) : -1;
  float dq[F::qk / 32][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    __syncthreads();  // the last tile has been read
    if (threadIdx.x < tile_keys) {
      table[threadIdx.x] = coming;
      coming = row_of(p, keys, query, (tile + 1) * tile_keys + static_cast<int>(threadIdx.x));
    }
    __syncthreads();
    load_rows<F::qk, threads>(k_tile, p, table, plain, chosen, pitch, p.d_qk);
    if constexpr (!F::latent) load_rows<F::v, threads>(own_values, p, table, values, values, v_pitch, p.d_v);
    ptx::copy_commit();
    ptx::copy_wait<0>();
    __syncthreads();
    float z[2][4] = {}, dp[2][4] = {};
    multiply_transposed<2, F::qk>(z, q_tile, row, k_tile, quarter * 16);
    multiply_transposed<2, F::v>(dp, g_tile, row, v_tile, quarter * 16);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = quarter * 16 + 8 * j + lane % 4 * 2;
      float w[4], dz[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = e / 2;
        w[e] = mine[r] < heads && table[column + e % 2] >= 0
                   ? attention::power_of_two(z[j][e] * (p.scale * attention::log2_e) - lse[r])
                   : 0;
        dz[e] = p.scale * w[e] * (dp[j][e] - delta[r]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
        put_pair(w_tile, mine[r], column, w[2 * r], w[2 * r + 1]),
            put_pair(dz_tile, mine[r], column, dz[2 * r], dz[2 * r + 1]);
    }
    __syncthreads();
    if (p.dq != nullptr) multiply<F::qk / 32, false>(dq, dz_tile, row, k_tile, quarter * F::qk / 4);
    if (p.dkeys == nullptr) continue;
#pragma unroll 1
    for (int column = quarter * F::qk / 4; column < (quarter + 1) * F::qk / 4; column += 16) {
      if (column >= p.d_qk) break;
      float dk[2][4] = {};
      multiply<2, true>(dk, dz_tile, row, q_tile, column);
      if (F::latent && column < F::v)
        multiply<2, true>(dk, w_tile, row, g_tile, column);  // columns of dy from d_v on are zero
      scatter(dk, table, row, column, p.d_qk, pitch, factor, p.dkeys + kv * p.d_qk);
    }
    if constexpr (!F::latent) {
#pragma unroll 1
      for (int column = quarter * F::v / 4; column < (quarter + 1) * F::v / 4; column += 16) {
        if (column >= p.d_v) break;
        float dv[2][4] = {};
        multiply<2, true>(dv, w_tile, row, g_tile, column);
        scatter(dv, table, row, column, p.d_v, v_pitch, factor, p.dvalues + kv * p.d_v);
      }
    }
  }
  ptx::copy_wait<0>();
  if (p.dq == nullptr) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (mine[r] >= heads) continue;
    bf16* to = p.dq + (first + mine[r]) * p.d_qk;
#pragma unroll
    for (int j = 0; j < F::qk / 32; ++j)
      attention::store_pair(to, quarter * F::qk / 4 + 8 * j + lane % 4 * 2, p.d_qk, dq[j][2 * r], dq[j][2 * r + 1],
                            p.vectors);
  }
}

}  // namespace

void backward(const Problem& p, cudaStream_t stream) {
  const std::int64_t blocks = static_cast<std::int64_t>(p.queries) * p.kv_heads * parts(p);
  if (p.values == nullptr)
    attention::launch(attend_backward<Form<true>>, blocks, threads, shared_bytes<Form<true>>, stream,
                      "gathered attention backward", shape(p), p);
  else
    attention::launch(attend_backward<Form<false>>, blocks, threads, shared_bytes<Form<false>>, stream,
                      "gathered attention backward", shape(p), p);
}

}  // namespace moeplan::cuda::gathered
