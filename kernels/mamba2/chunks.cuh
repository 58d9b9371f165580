#pragma once
/// The kernels that Mamba-2 and lightning attention share, and the products they are made of (mma.sync, bf16 factors,
/// fp32 sums).
///
/// With G the log decay summed over a chunk up to a token, S the state that enters the chunk, D the gradient of the
/// state that leaves it, j <= i tokens of one sequence, L_ij = e^(G_i - G_j), e_i = e^(G_i) where i's sequence entered
/// the chunk, f_j = e^(G_last - G_j) where j's leaves it:
///
///     y_i  = e_i S^T q_i + sum_j L_ij dt_j (q_i . k_j) v_j + skip v_i
///     dq_i = e_i S dy_i + sum_j R_ij k_j,                       R_ij = L_ij dt_j (dy_i . v_j)
///     dk_j = f_j dt_j D v_j + sum_i R_ij q_i
///     dv_j = f_j dt_j D^T k_j + sum_i L_ij dt_j (q_i . k_j) dy_i + skip dy_j
///
/// Only pairs of one sequence are decayed, so no exponent is positive. The terms of the gradients of dt and of the
/// decays are sums of U_ij = L_ij (dy_i . v_j) (q_i . k_j); pairs i > j and the diagonal apart, since the diagonal
/// cancels in the decays' gradient and would bury it.

#include <string>

#include "kernels/attention/tiles.cuh"
#include "kernels/mamba2/scratch.hpp"

namespace moeplan::cuda::ssd {

namespace ptx = kernels::ptx;
using attention::chunk_at;
using attention::load_tile;
using attention::power_of_two;
using attention::Rows;
using attention::store_pair;

constexpr int rows = static_cast<int>(moeplan::ssd::chunk_tokens);

/// Sums of a token and head that the gradients of dt and of the decay are made of.
enum Term : int {
  row_pairs,  ///< sum over j < i of U_ij dt_j
  row_state,  ///< e_i q_i . S dy_i
  pairs,      ///< sum over i > j of U_ij
  own,        ///< U_jj
  key_state,  ///< k_j . D v_j
  skipped,    ///< dy_j . v_j
};

/// One call by value. Pointers of what a pass does not use are null.
struct Problem {
  const bf16 *q = nullptr, *k = nullptr, *v = nullptr, *dy = nullptr;  ///< [tokens, groups n] and [tokens, heads p]
  bf16 *y = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;
  const float* skip = nullptr;  ///< [heads], added v; null: none
  // Mamba-2's gate.
  const bf16* raw = nullptr;                      ///< [tokens, heads]
  const float *a_log = nullptr, *bias = nullptr;  ///< [heads]
  bf16* d_raw = nullptr;
  float *d_a_log = nullptr, *d_bias = nullptr, *d_skip = nullptr;
  // Lightning attention's.
  float slope = 0, slope_step = 0;  ///< log2 decay of head h is -slope 2^(-slope_step h)
  const i64* starts = nullptr;      ///< [packed + 1]; null: equal lengths
  int packed = 0;
  i64 tokens = 0, length = 0;
  int heads = 0, groups = 0, n = 0, p = 0;  ///< n: width of q and k, p: of v
  int pitch = 0;                            ///< p padded to 8, of the states
  int chunks = 0, parts = 1;
  bool vectors = false;  ///< every row of 8 columns starts on 16 bytes
  int* first = nullptr;
  float *decay = nullptr, *step = nullptr, *terms = nullptr, *sums = nullptr, *dq_parts = nullptr, *dk_parts = nullptr;
  bf16 *states = nullptr, *d_states = nullptr;

  [[nodiscard]] __host__ __device__ i64 padded() const { return static_cast<i64>(chunks) * rows; }
  [[nodiscard]] __device__ bf16* state(bf16* of, int chunk, int head) const {
    return of + (static_cast<i64>(chunk) * heads + head) * n * pitch;
  }
  [[nodiscard]] __device__ float* term(Term which, int head, int chunk) const {
    return terms + (static_cast<i64>(which) * heads + head) * padded() + static_cast<i64>(chunk) * rows;
  }
  [[nodiscard]] __device__ Rows keys(const bf16* of, int group) const {
    return {of + static_cast<i64>(group) * n, static_cast<i64>(groups) * n, n};
  }
  [[nodiscard]] __device__ Rows values(const bf16* of, int head) const {
    return {of + static_cast<i64>(head) * p, static_cast<i64>(heads) * p, p};
  }
};

/// Each queues its kernels.
void gates(const Problem& p, cudaStream_t stream);            ///< first, decay, step
void enter_states(const Problem& p, cudaStream_t stream);     ///< states
void leave_gradients(const Problem& p, cudaStream_t stream);  ///< d_states
void outputs(const Problem& p, cudaStream_t stream);          ///< y
void query_gradients(const Problem& p, cudaStream_t stream);  ///< dq or its parts, terms of rows
void key_gradients(const Problem& p, cudaStream_t stream);    ///< dk or its parts, dv, the other terms
void gate_gradients(const Problem& p, cudaStream_t stream);   ///< d_raw, d_a_log, d_bias, d_skip
void sum_parts(const Problem& p, cudaStream_t stream);        ///< dq and dk from parts
std::string shape(const Problem& p);

/// The whole of a pass.
void forward(const Problem& p, cudaStream_t stream);
void backward(const Problem& p, cudaStream_t stream);
/// `p` with the cut of `d` and pointers into the scratch.
Problem laid_out(Problem p, const moeplan::ssd::Dims& d, bool backward, char* scratch);
/// Why the kernels do not take this; empty if they do.
std::string refusal(const moeplan::ssd::Dims& d);

template <int N, int P>
struct Size {
  static constexpr int n = N, p = P;
  static constexpr int stream =
      P > 64 ? 32 : 64;  ///< columns of pairs held at a time in the backward: the registers decide
};
/// Calls f(Size) with the smallest padded size.
template <class F>
void with_size(const Problem& p, F&& f) {
  if (p.n <= 64 && p.p <= 64)
    f(Size<64, 64>{});
  else if (p.p <= 64)
    f(Size<128, 64>{});
  else
    f(Size<128, 128>{});
}

/// b where a is not 0: what another sequence has, NaN too, does not pass.
__device__ __forceinline__ float where(float a, float b) { return a != 0 ? b : 0.0f; }
__device__ __forceinline__ float passed(float a, float b) { return a * where(a, b); }

/// What a block knows of its chunk and one head.
struct Gate {
  float decay[rows], step[rows];
  int first[rows];

  /// The block's first 128 threads write it; a barrier goes before and after.
  __device__ __forceinline__ void load(const Problem& p, int chunk, int head) {
    const int i = threadIdx.x;
    if (i >= rows) return;
    const i64 at = static_cast<i64>(head) * p.padded() + static_cast<i64>(chunk) * rows + i;
    decay[i] = p.decay[at], step[i] = p.step[at], first[i] = p.first[static_cast<i64>(chunk) * rows + i];
  }
  /// L_ij.
  __device__ __forceinline__ float between(int i, int j) const {
    return j <= i && j >= first[i] ? power_of_two(decay[i] - decay[j]) : 0.0f;
  }
  __device__ __forceinline__ float entered(int i) const { return first[i] < 0 ? power_of_two(decay[i]) : 0.0f; }
  __device__ __forceinline__ float leaves(int j) const {
    return first[j] == first[rows - 1] ? power_of_two(decay[rows - 1] - decay[j]) : 0.0f;
  }
  /// L_ij dt_j.
  __device__ __forceinline__ float weight(int i, int j) const { return passed(between(i, j), step[j]); }
  /// Whether tokens of several sequences are in the chunk.
  __device__ __forceinline__ bool several() const { return first[0] != first[rows - 1]; }
  /// Makes every pair of the token NaN.
  __device__ __forceinline__ void spoil(int token) { decay[token] = __int_as_float(0x7fffffff); }
};

/// Columns `column` and `column + 1` (even) of a row of a tile.
template <int tile_rows>
__device__ __forceinline__ float2 pair_of(std::uint32_t tile, int row, int column) {
  std::uint32_t both;
  asm volatile("ld.shared.u32 %0, [%1];"
               : "=r"(both)
               : "r"(chunk_at<tile_rows>(tile, row, column) + static_cast<std::uint32_t>(column % 8 * 2))
               : "memory");
  return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
}
template <int columns>
__device__ __forceinline__ void clear_row(std::uint32_t tile, int row) {
#pragma unroll
  for (int c = 0; c < columns; c += 8)
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(chunk_at<rows>(tile, row, c)), "r"(0) : "memory");
}
/// Rows of a tile in which something is no number become zeros, and `f` is told them, by one lane each: a product over
/// all rows of a chunk gives them to tokens of other sequences too, times zero. All warps of the block.
template <int columns, int threads, class F>
__device__ __forceinline__ void take_out(std::uint32_t tile, F&& f) {
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < rows; row += threads / 32) {
    bool none = false;
#pragma unroll
    for (int c = 0; c < columns; c += 64) {
      const float2 pair = pair_of<rows>(tile, row, c + 2 * lane);
      none |= !isfinite(pair.x) || !isfinite(pair.y);
    }
    if (!__any_sync(~0u, none)) continue;
    __syncwarp();  // all lanes have read it
    if (lane == 0) clear_row<columns>(tile, row), f(row);
  }
}

/// c[16, n] += a b^T: rows [row, row + 16) of tile a, rows [b_row, b_row + n) of tile b, over `depth` columns of both.
template <int a_rows, int b_rows, int n, int depth>
__device__ __forceinline__ void rows_by_rows(float (&c)[n / 8][4], std::uint32_t a, int row, std::uint32_t b,
                                             int b_row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < depth; k += 16) {
    std::uint32_t left[4];
    ptx::load_matrix_x4(left, chunk_at<a_rows>(a, row + lane % 16, k + lane / 16 * 8));
#pragma unroll
    for (int j = 0; j < n; j += 16) {
      std::uint32_t both[4];
      ptx::load_matrix_x4(both, chunk_at<b_rows>(b, b_row + j + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8));
      ptx::mma_bf16(c[j / 8], left, {both[0], both[1]});
      ptx::mma_bf16(c[j / 8 + 1], left, {both[2], both[3]});
    }
  }
}
/// c[16, n] += a b of the fragment a[16, depth] and rows [b_row, b_row + depth) of tile b, its first n columns.
template <int b_rows, int depth, int n>
__device__ __forceinline__ void fragment_by_columns(float (&c)[n / 8][4], const std::uint32_t (&a)[depth / 16][4],
                                                    std::uint32_t b, int b_row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < depth; k += 16)
#pragma unroll
    for (int j = 0; j < n; j += 16) {
      std::uint32_t both[4];
      ptx::load_matrix_x4_transposed(both, chunk_at<b_rows>(b, b_row + k + lane % 16, j + lane / 16 * 8));
      ptx::mma_bf16(c[j / 8], a[k / 16], {both[0], both[1]});
      ptx::mma_bf16(c[j / 8 + 1], a[k / 16], {both[2], both[3]});
    }
}
/// c[16, n] += a b: rows [row, row + 16) of tile a by all `depth` rows of tile b, its first n columns.
template <int a_rows, int depth, int n>
__device__ __forceinline__ void rows_by_columns(float (&c)[n / 8][4], std::uint32_t a, int row, std::uint32_t b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < depth; k += 16) {
    std::uint32_t left[4];
    ptx::load_matrix_x4(left, chunk_at<a_rows>(a, row + lane % 16, k + lane / 16 * 8));
#pragma unroll
    for (int j = 0; j < n; j += 16) {
      std::uint32_t both[4];
      ptx::load_matrix_x4_transposed(both, chunk_at<depth>(b, k + lane % 16, j + lane / 16 * 8));
      ptx::mma_bf16(c[j / 8], left, {both[0], both[1]});
      ptx::mma_bf16(c[j / 8 + 1], left, {both[2], both[3]});
    }
  }
}
/// Sum over the four lanes that share a row of an accumulator.
__device__ __forceinline__ float row_sum(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}

}  // namespace moeplan::cuda::ssd
