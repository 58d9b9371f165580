/// \file
/// Forward over gathered keys: 8 warps, 16 heads by half of the keys (logits) or half of the values' columns (output)
/// each. The next tile's rows arrive while this one is multiplied. Latent tiles of 64 keys x 576: 72 KiB, twice, beside
/// the queries' 72 KiB and the weights' 8 KiB. Bytes: 2 topk d_qk a query and 64 heads, from the second-level cache as
/// far as queries share keys; 2 topk heads (d_qk + d_v) operations.

#include "kernels/attention/launch.cuh"
#include "kernels/shared_memory.hpp"
#include "kernels/sparse_attention/gathered.cuh"

namespace moeplan::cuda::gathered {
namespace {

constexpr int threads = 256;

template <class F>
constexpr std::size_t shared_bytes = 128 * (F::qk + 2 * F::qk + (F::latent ? 0 : 2 * F::v) + tile_keys);
static_assert(shared_memory::latent_attention == shared_bytes<Form<true>>);

template <class F>
__global__ void __launch_bounds__(threads, 1) attend(const __grid_constant__ Problem p) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ int table[3][tile_keys];  // of the tile at hand, the next, and one that is being written
  __shared__ float part[2][tile_heads];
  const auto [query, kv, head, heads] = place(p);
  const Keys keys = keys_of(p, query);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp % 4 * 16, half = warp / 4;
  const std::uint32_t q_tile = ptx::shared_address(memory), k_tiles = q_tile + 128 * F::qk,
                      v_tiles = k_tiles + 256 * F::qk, w_tile = v_tiles + (F::latent ? 0 : 256 * F::v);
  const bf16 *plain = p.plain + kv * p.d_qk, *chosen = p.chosen + kv * p.d_qk,
             *values = F::latent ? nullptr : p.values + kv * p.d_v;
  const i64 pitch = static_cast<i64>(p.kv_heads) * p.d_qk, v_pitch = static_cast<i64>(p.kv_heads) * p.d_v;
  const int tiles = (keys.slots + tile_keys - 1) / tile_keys;
  const auto start = [&](int tile) {
    load_rows<F::qk, threads>(k_tiles + tile % 2 * 128 * F::qk, p, table[tile % 3], plain, chosen, pitch, p.d_qk);
    if constexpr (!F::latent)
      load_rows<F::v, threads>(v_tiles + tile % 2 * 128 * F::v, p, table[tile % 3], values, values, v_pitch, p.d_v);
    ptx::copy_commit();
  };
  const attention::Rows q{p.q + (static_cast<i64>(query) * p.heads + head) * p.d_qk, p.d_qk, p.d_qk};
  attention::load_tile<tile_heads, F::qk, threads>(q_tile, q, 0, heads, p.vectors);
  int coming = -1;  // row of a key of the tile after the next
  if (threadIdx.x < tile_keys) {
    table[0][threadIdx.x] = row_of(p, keys, query, static_cast<int>(threadIdx.x));
    coming = row_of(p, keys, query, tile_keys + static_cast<int>(threadIdx.x));
  }
  __syncthreads();
  if (tiles > 0) start(0);

  const int mine[2] = {row + lane / 4, row + lane / 4 + 8};
  float most[2], sum[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r)
    most[r] = p.sinks != nullptr && mine[r] < heads ? p.sinks[head + mine[r]] * attention::log2_e : -INFINITY;
  const float sink[2] = {most[0], most[1]};
  float out[F::v / 16][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    if (threadIdx.x < tile_keys) {
      table[(tile + 1) % 3][threadIdx.x] = coming;
      coming = row_of(p, keys, query, (tile + 2) * tile_keys + static_cast<int>(threadIdx.x));
    }
    ptx::copy_wait<0>();
    __syncthreads();  // this tile has landed, the last one is read, the next one's rows are known
    if (tile + 1 < tiles) start(tile + 1);
    const std::uint32_t k_tile = k_tiles + tile % 2 * 128 * F::qk,
                        v_tile = F::latent ? k_tile : v_tiles + tile % 2 * 128 * F::v;
    float z[4][4] = {};
    multiply_transposed<4, F::qk>(z, q_tile, row, k_tile, half * 32);
    float now[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        z[j][e] = table[tile % 3][half * 32 + 8 * j + lane % 4 * 2 + e % 2] < 0
                      ? -INFINITY
                      : z[j][e] * (p.scale * attention::log2_e);
        now[e / 2] = fmaxf(now[e / 2], z[j][e]);
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], 1));
      now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], 2));
      if (lane % 4 == 0) part[half][mine[r]] = now[r];
    }
    __syncthreads();
    float base[2], shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      now[r] = fmaxf(most[r], fmaxf(part[0][mine[r]], part[1][mine[r]]));
      base[r] = now[r] == -INFINITY ? 0 : now[r];  // nothing seen so far
      shrink[r] = attention::power_of_two(most[r] - base[r]);
      most[r] = now[r], sum[r] *= shrink[r];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) z[j][e] = attention::power_of_two(z[j][e] - base[e / 2]), sum[e / 2] += z[j][e];
      const int column = half * 32 + 8 * j + lane % 4 * 2;
      put_pair(w_tile, mine[0], column, z[j][0], z[j][1]);
      put_pair(w_tile, mine[1], column, z[j][2], z[j][3]);
    }
#pragma unroll
    for (int j = 0; j < F::v / 16; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[j][e] *= shrink[e / 2];
    __syncthreads();  // the weights of both halves
    multiply<F::v / 16, false>(out, w_tile, row, v_tile, half * F::v / 2);
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
    sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    if (lane % 4 == 0) part[half][mine[r]] = sum[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (mine[r] >= heads) continue;
    const float total =
        part[0][mine[r]] + part[1][mine[r]] + (p.sinks != nullptr ? attention::power_of_two(sink[r] - most[r]) : 0);
    const i64 at = static_cast<i64>(query) * p.heads + head + mine[r];
    if (half == 0 && lane % 4 == 0) p.lse[at] = (most[r] + log2f(total)) / attention::log2_e;
    const float inverse = total > 0 ? 1 / total : 0;  // a query without keys has no output
#pragma unroll
    for (int j = 0; j < F::v / 16; ++j)
      attention::store_pair(p.y + at * p.d_v, half * F::v / 2 + 8 * j + lane % 4 * 2, p.d_v, out[j][2 * r] * inverse,
                            out[j][2 * r + 1] * inverse, p.vectors);
  }
}

}  // namespace

std::string shape(const Problem& p) {
  return "queries=" + std::to_string(p.queries) + " keys=" + std::to_string(p.plain_rows) + "+" +
         std::to_string(p.chosen_rows) + " heads=" + std::to_string(p.heads) + "/" + std::to_string(p.kv_heads) +
         " d=" + std::to_string(p.d_qk) + "/" + std::to_string(p.d_v) + " topk=" + std::to_string(p.topk);
}

void forward(const Problem& p, cudaStream_t stream) {
  const std::int64_t blocks = static_cast<std::int64_t>(p.queries) * p.kv_heads * parts(p);
  if (p.values == nullptr)
    attention::launch(attend<Form<true>>, blocks, threads, shared_bytes<Form<true>>, stream,
                      "gathered attention forward", shape(p), p);
  else
    attention::launch(attend<Form<false>>, blocks, threads, shared_bytes<Form<false>>, stream,
                      "gathered attention forward", shape(p), p);
}

}  // namespace moeplan::cuda::gathered
