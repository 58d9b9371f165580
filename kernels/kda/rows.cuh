#pragma once
/// The front of every chunk-parallel kernel: a warp holds R rows (tokens), 8 or 4, a lane D / 32 neighbouring channels.
/// Neighbouring warps make a block of 16 rows; the middle M = G after its eighth row is the reference of the factored
/// form exp(G_i - G_j) = exp(G_i - M_I) exp(M_I - M_J) exp(M_J - G_j).

#include "kernels/kda/layout.cuh"
#include "kernels/kda/math.cuh"

namespace moeplan::kernels::kda {

template <int D, int R = 8>
struct Rows {
  static_assert(R == 8 || R == 4);
  static constexpr int warps = 64 / R;
  static constexpr int channels = D / 32;  ///< of a lane
  static constexpr int pairs = channels / 2;

  std::uint32_t q[R][pairs], k[R][pairs];  ///< raw bf16
  float g[R][channels];                    ///< log2 decay summed from the warp's first row
  float inverse_norms;                     ///< of q and k rows, see q_norm and k_norm

  __device__ __forceinline__ static int lane() { return threadIdx.x & 31; }
  __device__ __forceinline__ static int warp() { return threadIdx.x >> 5; }
  __device__ __forceinline__ static int channel() { return lane() * channels; }

  __device__ __forceinline__ static void load_row(std::uint32_t (&x)[pairs], const Bf16* row) {
    if constexpr (pairs == 2) {
      const uint2 both = *reinterpret_cast<const uint2*>(row);
      x[0] = both.x, x[1] = both.y;
    } else {
      x[0] = *reinterpret_cast<const std::uint32_t*>(row);
    }
  }
  __device__ __forceinline__ static void store_row(void* row, const std::uint32_t (&x)[pairs]) {
    if constexpr (pairs == 2) {
      *reinterpret_cast<uint2*>(row) = make_uint2(x[0], x[1]);
    } else {
      *reinterpret_cast<std::uint32_t*>(row) = x[0];
    }
  }

  /// Reads the rows of the chunk, norms and gates them. Returns the pre-activations (raw bf16) in `z`.
  __device__ __forceinline__ void load(const Launch& launch, const Chunk& chunk, int head,
                                       std::uint32_t (&z)[R][pairs]) {
    const std::int64_t stride = static_cast<std::int64_t>(launch.heads) * D;
    const std::int64_t base = (chunk.begin + warp() * R) * stride + head * D + channel();
#pragma unroll
    for (int i = 0; i < R; ++i) {
      if (warp() * R + i < chunk.rows) {
        load_row(z[i], launch.gate + base + i * stride);
        load_row(k[i], launch.k + base + i * stride);
        load_row(q[i], launch.q + base + i * stride);
      } else {
#pragma unroll
        for (int p = 0; p < pairs; ++p) q[i][p] = k[i][p] = z[i][p] = 0;
      }
    }
    const float a = gate_scale(launch.a_log[head]);
    float bias[channels];
#pragma unroll
    for (int c = 0; c < channels; ++c) bias[c] = launch.dt_bias ? launch.dt_bias[head * D + channel() + c] : 0.0f;
    float sums[2 * R];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      float sq = 0, sk = 0;
#pragma unroll
      for (int p = 0; p < pairs; ++p) {
        const float2 x = unpack_bf16(q[i][p]), y = unpack_bf16(k[i][p]);
        sq += x.x * x.x + x.y * x.y;
        sk += y.x * y.x + y.y * y.y;
      }
      sums[i] = sq, sums[R + i] = sk;
    }
    const auto activate = [&](auto gate) {  // one copy of the loop per gate form, not a branch per element
#pragma unroll
      for (int i = 0; i < R; ++i)
#pragma unroll
        for (int p = 0; p < pairs; ++p) {
          const float2 x = unpack_bf16(z[i][p]);
          g[i][2 * p] = gate(x.x + bias[2 * p]), g[i][2 * p + 1] = gate(x.y + bias[2 * p + 1]);
        }
    };
    if (launch.lower_bound == 0.0f)
      activate([a](float x) { return softplus_log2(x, a); });
    else
      activate([a_log2 = fminf(a * log2_e, 1e37f), bound = launch.lower_bound * log2_e](float x) {
        return bounded_log2(x, a_log2, bound);
      });
    if (warp() * R + R > chunk.rows)
#pragma unroll
      for (int i = 0; i < R; ++i)
#pragma unroll
        for (int c = 0; c < channels; ++c)
          if (warp() * R + i >= chunk.rows) g[i][c] = 0.0f;
    inverse_norms = rsqrtf(reduce_rows(sums) + 1e-6f);
#pragma unroll
    for (int i = 1; i < R; ++i)
#pragma unroll
      for (int c = 0; c < channels; ++c) g[i][c] += g[i - 1][c];
  }
  [[nodiscard]] __device__ __forceinline__ float q_norm(int i) const {
    return __shfl_sync(0xffffffffu, inverse_norms, 16 / R * i);
  }
  [[nodiscard]] __device__ __forceinline__ float k_norm(int i) const {
    return __shfl_sync(0xffffffffu, inverse_norms, 16 / R * (R + i));
  }

  /// Publishes the decay of these rows ([64 / R][D] floats in `totals`). True if it is past the factored form.
  __device__ __forceinline__ bool publish(float* totals) const {
    bool far = false;
#pragma unroll
    for (int c = 0; c < channels; ++c) {
      totals[warp() * D + channel() + c] = g[R - 1][c];
      far |= !(g[R - 1][c] > -factored_limit * (R / 8.0f));
    }
    return far;
  }
  /// After a block barrier: what to add to `g` for the decay from the middle of the block.
  __device__ __forceinline__ static void from_middle(const float* totals, float (&shift)[channels]) {
    constexpr int half = 8 / R;  // warps before the middle, and after it
    const int place = warp() & (2 * half - 1), first = warp() - place;
#pragma unroll
    for (int c = 0; c < channels; ++c) {
      shift[c] = 0.0f;
#pragma unroll
      for (int w = 0; w < 2 * half; ++w) {
        const float total = totals[(first + w) * D + channel() + c];
        if (w >= place && w < half) shift[c] -= total;  // before the middle: from here to it
        if (w >= half && w < place) shift[c] += total;
      }
    }
  }
  /// After a block barrier: G before the warp's first row, and G of the whole chunk.
  __device__ __forceinline__ static void prefix(const float* totals, float (&start)[channels], float (&end)[channels]) {
#pragma unroll
    for (int c = 0; c < channels; ++c) start[c] = end[c] = 0.0f;
#pragma unroll
    for (int w = 0; w < warps; ++w)
#pragma unroll
      for (int c = 0; c < channels; ++c) {
        const float total = totals[w * D + channel() + c];
        if (w < warp()) start[c] += total;
        end[c] += total;
      }
  }
};

/// exp(M_I - M_J) for blocks I > J as bf16 pairs: table [6][D / 2] in the order (1,0) (2,0) (2,1) (3,0) (3,1) (3,2).
template <int D>
__device__ __forceinline__ void block_decays(const float* totals, std::uint32_t* table, int thread, int threads) {
  for (int index = thread; index < 6 * D / 2; index += threads) {
    const int pair = index / (D / 2), c = 2 * (index % (D / 2));
    const int i = pair == 0 ? 1 : pair < 3 ? 2 : 3, j = pair - i * (i - 1) / 2;
    float low = 0, high = 0;
    for (int w = 2 * j + 1; w <= 2 * i; ++w) low += totals[w * D + c], high += totals[w * D + c + 1];
    table[index] = ptx::pack_bf16(exp2_fast(low), exp2_fast(high));
  }
}
__device__ __forceinline__ int block_pair(int i, int j) { return i * (i - 1) / 2 + j; }

}  // namespace moeplan::kernels::kda
