#pragma once
/// The router's three small products on tensor cores, out[m, n] = sum_k a(m, k) b(k, n) (+ bias_n), for any sizes and strides: logits x W^T in
/// fp32, dx = dz W and dW = dz^T x in bf16. An fp32 operand enters as two bf16 (its rounded value and the rest: 16 bits of mantissa), so that
/// gradients of logits are not rounded; sums are moved to other registers every 256 of k, which keeps logits of thousands of terms to a few
/// units of fp32 (a router's choice hangs on them).
///
/// Block: 64 x 128 of the result, 8 warps of 32 x 32, k in steps of 32 through two stages of shared memory with the next step's values in
/// registers. One order of sums; nothing is split over k. Bytes at T tokens, h, e: A once per 128 columns, B once per 64 rows, mostly from L2.

#include "kernels/base/pack.cuh"
#include "kernels/base/ptx.cuh"

namespace moeplan::cuda::router_detail {

namespace ptx = kernels::ptx;

/// A matrix in memory: element (row, column of the contraction) at data[row * row_stride + k] if it lies along k, else at data[k * row_stride + row].
template <class T>
struct Side {
  const T* data;
  i64 stride;   ///< between rows, or between steps of k
  i64 rows;     ///< m or n
  bool wide;    ///< packs of 8 may be read
};

struct Sizes {
  i64 m, n, k;
};

inline constexpr int tile_m = 64, tile_n = 128, tile_k = 32, project_threads = 256;

/// Eight neighbouring values as bf16, and what rounding left of fp32.
struct Eight {
  uint4 high, low;
};

template <class T>
__device__ __forceinline__ Eight eight(const float (&v)[8]) {
  Eight out{};
  float rest[8];
  const auto high = Pack<bf16, 8>::of(v);
  out.high = make_uint4(high.word[0], high.word[1], high.word[2], high.word[3]);
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int j = 0; j < 8; ++j) rest[j] = v[j] - high[j];
    const auto low = Pack<bf16, 8>::of(rest);
    out.low = make_uint4(low.word[0], low.word[1], low.word[2], low.word[3]);
  }
  return out;
}

/// A tile of `size` rows by 32 of k in shared memory: [row][k] if the matrix lies along k, else [k][row]; padded so that matrix loads meet no
/// bank twice.
template <class T, bool along_k, int size>
struct Tile {
  static constexpr int lines = along_k ? size : tile_k, length = along_k ? tile_k : size, pitch = length + 8;
  static constexpr int halves = sizeof(T) == 4 ? 2 : 1, elements = lines * pitch * halves;
  static constexpr int packs = size * tile_k / 8 / project_threads;   ///< a thread loads
  static_assert(packs >= 1);

  __device__ __forceinline__ static void fetch(const Side<T>& s, i64 row0, i64 k0, i64 k, Eight (&out)[packs]) {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      const int i = threadIdx.x + p * project_threads, line = i / (length / 8), offset = i % (length / 8) * 8;
      const i64 major = (along_k ? row0 : k0) + line, minor = (along_k ? k0 : row0) + offset;
      const i64 majors = along_k ? s.rows : k, minors = along_k ? k : s.rows;
      const T* at = s.data + major * s.stride + minor;
      float v[8] = {};
      if (major < majors) {
        if (s.wide && minor + 8 <= minors) {
          const auto pack = cuda::load<8, false>(at);
#pragma unroll
          for (int j = 0; j < 8; ++j) v[j] = pack[j];
        } else {
#pragma unroll
          for (int j = 0; j < 8; ++j)
            if (minor + j < minors) v[j] = widened(at[j]);
        }
      }
      out[p] = eight<T>(v);
    }
  }
  __device__ __forceinline__ static void put(bf16* tile, const Eight (&values)[packs]) {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      const int i = threadIdx.x + p * project_threads, at = i / (length / 8) * pitch + i % (length / 8) * 8;
      *reinterpret_cast<uint4*>(tile + at) = values[p].high;
      if constexpr (halves == 2) *reinterpret_cast<uint4*>(tile + lines * pitch + at) = values[p].low;
    }
  }
  /// Fragments of 16 rows from `row` and 16 of k from `k0`, in the order that mma wants of its left side, or of two blocks of its right.
  template <bool left>
  __device__ __forceinline__ static void fragments(std::uint32_t (&r)[4], const bf16* tile, int row, int k0) {
    const int lane = threadIdx.x % 32, q = lane / 8, i = lane % 8;
    const int row8 = (left ? q % 2 : q / 2) * 8, k8 = (left ? q / 2 : q % 2) * 8;
    if constexpr (along_k) ptx::load_matrix_x4(r, ptx::shared_address(tile + (row + row8 + i) * pitch + k0 + k8));
    else ptx::load_matrix_x4_transposed(r, ptx::shared_address(tile + (k0 + k8 + i) * pitch + row + row8));
  }
};

template <class TA, bool a_along_k, class TB, bool b_along_k, class Out>
__global__ void __launch_bounds__(project_threads) project(Sizes sizes, Side<TA> a, Side<TB> b, const bf16* bias, Out* out, bool pairs) {
  static_assert(sizeof(TB) == 2, "one side may be fp32: the left one");
  using A = Tile<TA, a_along_k, tile_m>;
  using B = Tile<TB, b_along_k, tile_n>;
  __shared__ __align__(16) bf16 a_tiles[2][A::elements], b_tiles[2][B::elements];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, m_warp = warp / 4 * 32, n_warp = warp % 4 * 32;
  const i64 m0 = static_cast<i64>(blockIdx.x) * tile_m, n0 = static_cast<i64>(blockIdx.y) * tile_n;
  float sums[2][4][4] = {}, total[2][4][4] = {};
  Eight next_a[A::packs], next_b[B::packs];
  A::fetch(a, m0, 0, sizes.k, next_a), B::fetch(b, n0, 0, sizes.k, next_b);
  int step = 0;
  for (i64 k = 0; k < sizes.k; k += tile_k, ++step) {
    bf16 *a_tile = a_tiles[step % 2], *b_tile = b_tiles[step % 2];
    A::put(a_tile, next_a), B::put(b_tile, next_b);
    __syncthreads();   // one is enough: the other stage was last read before the barrier of the step before
    if (k + tile_k < sizes.k) A::fetch(a, m0, k + tile_k, sizes.k, next_a), B::fetch(b, n0, k + tile_k, sizes.k, next_b);
#pragma unroll
    for (int kk = 0; kk < tile_k; kk += 16) {
      std::uint32_t right[2][4];
      B::template fragments<false>(right[0], b_tile, n_warp, kk), B::template fragments<false>(right[1], b_tile, n_warp + 16, kk);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < A::halves; ++half) {
          std::uint32_t left[4];
          A::template fragments<true>(left, a_tile + half * A::lines * A::pitch, m_warp + 16 * i, kk);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const std::uint32_t two[2] = {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]};
            ptx::mma_bf16(sums[i][j], left, two);
          }
        }
    }
    if (step % 8 == 7)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int x = 0; x < 4; ++x) total[i][j][x] += sums[i][j][x], sums[i][j][x] = 0;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int row8 = 0; row8 < 2; ++row8) {
        const i64 m = m0 + m_warp + 16 * i + 8 * row8 + lane / 4, n = n0 + n_warp + 8 * j + 2 * (lane % 4);
        if (m >= sizes.m) continue;
        float v[2];
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          v[x] = total[i][j][2 * row8 + x] + sums[i][j][2 * row8 + x];
          if (bias != nullptr && n + x < sizes.n) v[x] += widened(bias[n + x]);
        }
        Out* at = out + m * sizes.n + n;
        if (pairs && n + 1 < sizes.n) {
          store<2>(at, v);
        } else {
#pragma unroll
          for (int x = 0; x < 2; ++x)
            if (n + x < sizes.n) at[x] = narrowed<Out>(v[x]);
        }
      }
}

/// Queues it. `pairs` of results are written at once where they are aligned.
template <bool a_along_k, bool b_along_k, class TA, class TB, class Out>
void queue_project(Sizes sizes, const TA* a, i64 a_stride, const TB* b, i64 b_stride, const bf16* bias, Out* out, cudaStream_t stream) {
  const auto wide = [](const void* p, i64 stride) { return stride % 8 == 0 && aligned({p}); };
  const Side<TA> left{a, a_stride, sizes.m, wide(a, a_stride)};
  const Side<TB> right{b, b_stride, sizes.n, wide(b, b_stride)};
  const bool pairs = sizes.n % 2 == 0 && reinterpret_cast<std::uintptr_t>(out) % (2 * sizeof(Out)) == 0;
  const dim3 grid(static_cast<unsigned>((sizes.m + tile_m - 1) / tile_m), static_cast<unsigned>((sizes.n + tile_n - 1) / tile_n));
  project<TA, a_along_k, TB, b_along_k, Out><<<grid, project_threads, 0, stream>>>(sizes, left, right, bias, out, pairs);
  kernels::check_launch("router projection", "m=" + std::to_string(sizes.m) + " n=" + std::to_string(sizes.n) + " k=" + std::to_string(sizes.k));
}

}  // namespace moeplan::cuda::router_detail
