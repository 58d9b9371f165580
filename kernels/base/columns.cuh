#pragma once
/// Copies of column slices: what splitting and joining columns come down to. A group of a row is a row of its own.

#include "kernels/base/pack.cuh"

namespace moeplan::cuda {

/// to[r, c] = from[r, c] for `rows` x `width`, each side with its own distance between rows (elements); from null: zeros.
struct ColumnCopy {
  static constexpr int unroll = 4;
  const bf16* from;
  bf16* to;
  i64 from_stride, to_stride;
  RowOf rows;
  template <int V>
  struct Piece {
    Pack<bf16, V> value;
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const {
    if (from == nullptr) return {Pack<bf16, V>::of({})};
    i64 row, column;
    rows(i, row, column);
    return {cuda::load<V>(from + row * from_stride + column)};
  }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const {
    i64 row, column;
    rows(i, row, column);
    cuda::store<V>(to + row * to_stride + column, p.value);
  }
};

inline void copy_columns(const bf16* from, i64 from_stride, bf16* to, i64 to_stride, i64 rows, i64 width, cudaStream_t stream, std::string_view name) {
  if (to == nullptr || rows == 0 || (from == to && from_stride == to_stride)) return;
  const bool wide = width % 8 == 0 && from_stride % 8 == 0 && to_stride % 8 == 0 && aligned({from, to});
  pointwise(rows * width, wide, ColumnCopy{from, to, from_stride, to_stride, RowOf::of(width, rows * width)}, stream, name);
}

}  // namespace moeplan::cuda
