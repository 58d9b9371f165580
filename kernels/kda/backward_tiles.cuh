#pragma once
/// Shared memory of the chunk backward, its tile arithmetic, and the sums pair by pair for gates past the factored
/// form.
///
/// Chunk-parallel backward: one block of four warpgroups per (chunk, head). From S_0, dS_C, N, dN and T it forms
///
///     Z = T^T dN       dP = tril(dO N^T)    dL = -stril(Z N^T)
///     q side  dO S_0^T exp(G_i) + sum_j dP_ij k_j E_ij          (warpgroups 0 and 1)
///     k side  -Z S_0^T exp(G_i) + sum_j dL_ij k_j E_ij          (warpgroups 2 and 3)
///     k as a column  N dS_C^T exp(G_C - G_j) + sum_i (dP_ij q_i + b_i dL_ij k_i) E_ij    (warpgroups 0 and 1)
///
/// and then every gradient. With E factored around block middles M, each side is a Horner scheme in the accumulators:
/// the term from the state first, then block after block, scaled by exp(M_J - M_(J-1)) per channel in between; all
/// scales are at most 1. Past the factored form the sums run pair by pair with exact exponentials.

#include "kernels/kda/rows.cuh"

namespace moeplan::kernels::kda {

inline constexpr int backward_threads = 512,
                     warp_rows = 4;  ///< with 256 and 8 (H16 T16384, one H200): 850 us; with these 804 us

template <int D>
struct BackwardShared {
  static constexpr int tile = Record<D>::tile, state = 2 * D * D;
  // Three fp32 tiles [64][D] lie over s, d_s, d_out and n once these have been used.
  static constexpr int side_q = 0, side_k = 64 * D * 4, column = 2 * side_k;
  static constexpr int s = 0, d_s = state, d_out = 2 * state, n = d_out + tile,
                       first = n + tile > 3 * side_k ? n + tile : 3 * side_k;
  static constexpr int z = first, t = z + tile;  // z holds dN first
  static constexpr int qa = t + panel_bytes, ka = qa + tile, kb = ka + tile;
  static constexpr int sums = kb;  ///< G in fp32 [64][D], past the factored form only; kb is not needed then
  static constexpr int dp = kb + 64 * D * 4, dl = dp + panel_bytes;
  static constexpr int totals = dl + panel_bytes, steps = totals + 16 * D * 4, to_end = steps + 5 * D * 4,
                       ranges = backward_threads / (D / 2), ends = to_end + 4 * D * 4,
                       beta = ends + (ranges + 4) * D * 4, beta_pairs = beta + 256, barrier = beta_pairs + 128,
                       bytes = barrier + 16;
};

/// Byte offset in an fp32 tile [64][D]; pairs of columns are swizzled so that accumulator writes hit all banks.
template <int D>
__device__ __forceinline__ int tile_offset(int row, int channel) {
  return row * (D * 4) + (((channel >> 1) ^ ((row & 7) << 2)) << 3) + (channel & 1) * 4;
}

template <int D, int count>
__device__ __forceinline__ void scale_columns(float (&c)[count], const float* factors) {
  const int column = 2 * (threadIdx.x & 3);
#pragma unroll
  for (int j = 0; j < count / 4; ++j) {
    const float2 y = *reinterpret_cast<const float2*>(factors + 8 * j + column);
    c[4 * j] *= y.x, c[4 * j + 1] *= y.y, c[4 * j + 2] *= y.x, c[4 * j + 3] *= y.y;
  }
}

/// c[16, 2 count] += a[16, 16] b, b the 16 rows from `row` of the image, channels from `channel`.
template <int count>
__device__ __forceinline__ void multiply_rows(float (&c)[count], const std::uint32_t (&a)[4], std::uint32_t image,
                                              int row, int channel) {
  const int lane = threadIdx.x & 31, m = lane >> 3, r = lane & 7;
  const std::uint32_t start = image + image_offset(row + (m & 1) * 8 + r, channel + (m >> 1) * 8);
#pragma unroll
  for (int x = 0; x < count / 8; ++x) {
    std::uint32_t b[4];
    ptx::load_matrix_x4_transposed(b, along_channels(start, x));
    const std::uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
    ptx::mma_bf16(*reinterpret_cast<float(*)[4]>(&c[8 * x]), a, b0);
    ptx::mma_bf16(*reinterpret_cast<float(*)[4]>(&c[8 * x + 4]), a, b1);
  }
}

template <int D, int count>
__device__ __forceinline__ void store_tile(char* tile, const float (&c)[count], int channel) {
  const int lane = threadIdx.x & 31, row = 16 * ((threadIdx.x >> 5) & 3) + (lane >> 2),
            column = channel + 2 * (lane & 3);
#pragma unroll
  for (int j = 0; j < count / 4; ++j) {
    *reinterpret_cast<float2*>(tile + tile_offset<D>(row, column + 8 * j)) = make_float2(c[4 * j], c[4 * j + 1]);
    *reinterpret_cast<float2*>(tile + tile_offset<D>(row + 8, column + 8 * j)) =
        make_float2(c[4 * j + 2], c[4 * j + 3]);
  }
}

/// beta = folded * rest: dL is kept times `folded`, so that the row and the column side see the same rounded number; an
/// all but vanishing beta stays outside, because d_beta divides by the folded part.
__device__ __forceinline__ float beta_folded(float beta) { return fabsf(beta) > 1e-18f ? beta : 1.0f; }
__device__ __forceinline__ float beta_rest(float beta) { return fabsf(beta) > 1e-18f ? 1.0f : beta; }

__device__ __forceinline__ float bf16_at(const char* shared, int image, int row, int channel) {
  return __uint_as_float(std::uint32_t(*reinterpret_cast<const Bf16*>(shared + image + image_offset(row, channel)))
                         << 16);
}

/// The three sides pair by pair, in place on the tiles of state terms; returns nothing, adds k exp(..) dK to `ends`.
template <int D>
__device__ void pairs_one_by_one(char* shared, const float* beta, const float (&end)[D / 32],
                                 float (&end_sum)[D / 32]) {
  using S = BackwardShared<D>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const auto* sums = reinterpret_cast<const float*>(shared + S::sums);
#pragma unroll 1
  for (int x = 0; x < warp_rows * (D / 32); ++x) {
    const int i = warp_rows * warp + x / (D / 32), e = x % (D / 32), c = lane * (D / 32) + e;
    const float own = sums[i * D + c];
    auto& q_side = *reinterpret_cast<float*>(shared + S::side_q + tile_offset<D>(i, c));
    auto& k_side = *reinterpret_cast<float*>(shared + S::side_k + tile_offset<D>(i, c));
    auto& column = *reinterpret_cast<float*>(shared + S::column + tile_offset<D>(i, c));
    const float to_end = exp2_fast(end[e] - own), from_start = exp2_fast(own);
    end_sum[e] += bf16_at(shared, S::ka, i, c) * to_end * column;
    float rq = q_side * from_start, rk = k_side * from_start, ck = column * to_end;
    for (int j = 0; j <= i; ++j) {
      const float y = bf16_at(shared, S::ka, j, c) * exp2_fast(own - sums[j * D + c]);
      rq += bf16_at(shared, S::dp, i, j) * y;
      if (j < i) rk += bf16_at(shared, S::dl, i, j) * y;
    }
    for (int j = i; j < 64; ++j) {
      const float y = exp2_fast(sums[j * D + c] - own);
      ck += bf16_at(shared, S::dp, j, i) * bf16_at(shared, S::qa, j, c) * y;
      if (j > i) ck += beta_rest(beta[j]) * bf16_at(shared, S::dl, j, i) * bf16_at(shared, S::ka, j, c) * y;
    }
    q_side = rq, k_side = rk, column = ck;
  }
}

}  // namespace moeplan::kernels::kda
