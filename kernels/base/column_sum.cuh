#pragma once
/// Sums over the rows of a matrix, column by column: bias gradients. Two kernels, both of a fixed order.

#include "kernels/base/pack.cuh"

namespace moeplan::cuda {

inline constexpr int column_slices = 64, column_threads = 128;

inline __global__ void __launch_bounds__(column_threads) column_parts(const bf16* x, i64 rows, i64 columns, i64 stride, float* parts) {
  const i64 c = static_cast<i64>(blockIdx.x) * column_threads + threadIdx.x;
  if (c >= columns) return;
  float sum = 0;
  for (i64 r = blockIdx.y; r < rows; r += column_slices) sum += widened(x[r * stride + c]);
  parts[blockIdx.y * columns + c] = sum;
}
template <class T>
__global__ void __launch_bounds__(column_threads) column_total(const float* parts, i64 columns, float before, T* out) {
  const i64 c = static_cast<i64>(blockIdx.x) * column_threads + threadIdx.x;
  if (c >= columns) return;
  float sum = 0;
  for (int s = 0; s < column_slices; ++s) sum += parts[s * columns + c];
  out[c] = narrowed<T>(before * (before == 0 ? 0 : widened(out[c])) + sum);
}

/// Bytes that `column_sum` wants.
constexpr std::int64_t column_sum_scratch(std::int64_t columns) { return 4 * column_slices * columns; }

/// out[c] = before out[c] + sum over r of x[r, c], rows `stride` elements apart.
template <class T>
void column_sum(const bf16* x, i64 rows, i64 columns, i64 stride, T* out, float* parts, cudaStream_t stream, float before = 0) {
  const auto blocks = static_cast<unsigned>((columns + column_threads - 1) / column_threads);
  column_parts<<<dim3(blocks, column_slices), column_threads, 0, stream>>>(x, rows, columns, stride, parts);
  column_total<<<blocks, column_threads, 0, stream>>>(parts, columns, before, out);
  kernels::check_launch("column sums", "rows=" + std::to_string(rows) + " columns=" + std::to_string(columns));
}

}  // namespace moeplan::cuda
