#pragma once
/// Row kernels: a group of threads owns a row, holds it in registers (at most 4 packs a thread, 8 of single values) and reduces over it; a
/// block has one or more groups. Without column sums there is a block for each of its rows, so that the hardware evens out their times. Reductions have a fixed order (butterflies in a warp, then warps in order), and
/// column sums over rows (gradients of norm weights) go through one partial row a block, summed in order by `sum_partials`: no atomics.
///
/// A row of up to 32 packs is a power-of-two part of a warp, up to 128 packs a warp, up to 2048 packs (4096 single values) a block.

#include <algorithm>

#include "core/error.hpp"
#include "kernels/base/pack.cuh"

namespace moeplan::cuda {

/// Blocks that write partial column sums, at most: as many as are resident together on an H200's 132 multiprocessors, two of wide rows or
/// four of narrow ones each; what is in flight on a multiprocessor is what its resident rows have asked for.
inline constexpr i64 most_partials = 528, most_wide_partials = 264;
/// Threads of a row kernel's block, at most: leaves each 128 registers.
inline constexpr int most_row_threads = 512;

struct RowPlan {
  bool wide = false;     ///< packs of 8
  int per_thread = 1;    ///< packs a thread: 1, or 4 wide ones, or 8 single values
  int group = 1;         ///< threads a row
  int threads = 128;     ///< of a block
  [[nodiscard]] int rows() const { return threads / group; }
  /// Floats of shared memory in which `write_partial` adds up the groups of a block.
  [[nodiscard]] std::size_t partial_bytes() const {
    return rows() == 1 ? 0 : sizeof(float) * static_cast<std::size_t>(threads * per_thread * (wide ? 8 : 1));
  }
};

/// Widest row: 16384 columns, or 4096 where packs of 8 do not fit (a width that is no multiple of 8, or a view that is not aligned).
inline RowPlan row_plan(std::string_view where, i64 width, bool wide) {
  const i64 packs = wide ? width / 8 : width, most = wide ? 4 : 8;
  if (packs > most * most_row_threads)
    throw InputError(std::string(where), "rows of " + std::to_string(width) + " columns" + (wide ? "" : " that are not in whole aligned packs of 16 bytes"),
                     "the CUDA kernel holds a row in one block: up to 16384 columns in multiples of 8, or up to 4096 otherwise");
  RowPlan plan{.wide = wide};
  if (packs <= 32) {
    while (plan.group < packs) plan.group *= 2;
    return plan;
  }
  plan.per_thread = static_cast<int>(most);
  plan.group = packs <= 32 * most ? 32 : static_cast<int>((packs + 32 * most - 1) / (32 * most) * 32);
  if (plan.group > 32) plan.threads = plan.group;
  return plan;
}

/// Blocks for `rows`: one for each of its rows, or at most `most_partials` that walk rows with the grid's stride.
inline unsigned row_blocks(const RowPlan& plan, i64 rows, bool partials = false) {
  const i64 blocks = (rows + plan.rows() - 1) / plan.rows(), resident = plan.group > 32 ? most_wide_partials : most_partials;
  const i64 most = partials ? resident : std::numeric_limits<std::int32_t>::max();
  return static_cast<unsigned>(std::min(blocks, most));
}

/// The plan for a kernel that also sums columns: blocks of narrow rows are larger, since there are few of them.
inline RowPlan with_column_sums(RowPlan plan) {
  if (plan.group <= 32) plan.threads = 256;
  return plan;
}

/// Registers a thread of a row kernel may use where it holds four wide packs, or one. Chosen so that enough rows are resident: one of 7168
/// columns takes 224 threads, of which 72 registers let four in and 96 three.
template <int V, int K>
constexpr int row_registers(int four, int one) { return V == 8 ? (K == 4 ? four : one) : 128; }

/// Sums N values over the threads of a group; all threads of the block call it together. `shared` has 64 N floats, `turn` alternates.
template <int N>
__device__ __forceinline__ void group_sum(float (&v)[N], int group, float* shared, int& turn) {
  for (int o = (group < 32 ? group : 32) / 2; o > 0; o /= 2)
#pragma unroll
    for (int n = 0; n < N; ++n) v[n] += __shfl_xor_sync(0xffffffffu, v[n], o);
  if (group <= 32) return;
  float* mine = shared + turn * 32 * N;   // the other half may still be read by slower warps
  turn ^= 1;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0)
#pragma unroll
    for (int n = 0; n < N; ++n) mine[warp * N + n] = v[n];
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float sum = 0;
    for (int w = 0; w < warps; ++w) sum += mine[w * N + n];
    v[n] = sum;
  }
}

/// A weight's pack, from cache; zeros if the weight is not there because what needs it is not wanted.
template <int V>
__device__ __forceinline__ Pack<bf16, V> weight_at(const bf16* w, i64 column) {
  if (w == nullptr) return Pack<bf16, V>::of({});
  return load<V, false>(w + column);
}

/// Adds up the groups of the block in order and writes its row of partial column sums.
template <int V, int K>
__device__ __forceinline__ void write_partial(const float (&sums)[K][V], float* out, i64 width, int group) {
  extern __shared__ float groups_shared[];
  const int lane = threadIdx.x % group, sub = threadIdx.x / group, rows = blockDim.x / group;
  float* to = rows == 1 ? out : groups_shared + sub * group * K * V;
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int j = 0; j < V; ++j)
      if (const i64 c = static_cast<i64>(lane + k * group) * V + j; c < width) to[c] = sums[k][j];
  if (rows == 1) return;
  __syncthreads();
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    float sum = 0;
    for (int r = 0; r < rows; ++r) sum += groups_shared[r * group * K * V + c];
    out[c] = sum;
  }
  __syncthreads();
}

/// out_c = factor_c sum_p partials[p, c] in the order of p; without rows, zeros. 32 columns a block, 32 parts of the rows.
template <class T>
__global__ void __launch_bounds__(1024) sum_partials_kernel(i64 rows, i64 columns, const float* partials, const bf16* factor, T* out) {
  __shared__ float parts[32][32];
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
  const i64 c = static_cast<i64>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (c < columns)
#pragma unroll 8
    for (i64 p = part; p < rows; p += 32) sum += partials[p * columns + c];
  parts[part][lane] = sum;
  __syncthreads();
  if (part != 0 || c >= columns) return;
#pragma unroll
  for (int i = 1; i < 32; ++i) sum += parts[i][lane];
  out[c] = narrowed<T>(factor ? sum * widened(factor[c]) : sum);
}
template <class T>
void sum_partials(i64 rows, i64 columns, const float* partials, T* out, cudaStream_t stream, const bf16* factor = nullptr) {
  sum_partials_kernel<<<static_cast<unsigned>((columns + 31) / 32), 1024, 0, stream>>>(rows, columns, partials, factor, out);
  kernels::check_launch("sum of partial rows", "rows=" + std::to_string(rows) + " columns=" + std::to_string(columns));
}

/// Calls f<V, K>() for the plan's packs.
template <class F>
void with_packs(const RowPlan& plan, F&& f) {
  if (plan.wide && plan.per_thread == 1) f.template operator()<8, 1>();
  else if (plan.wide) f.template operator()<8, 4>();
  else if (plan.per_thread == 1) f.template operator()<1, 1>();
  else f.template operator()<1, 8>();
}

}  // namespace moeplan::cuda
