#pragma once
/// Element kernels of the CUDA backend: views that take some columns of their base, conversion and sums between types. All queued on the
/// stream; errors name the call.

#include <cstdint>

#include <cuda_runtime.h>

#include "core/dtype.hpp"

namespace moeplan::cuda {

/// Some columns of every row of a base: dense[r, c] stands for base[r, columns[c]].
struct Columns {
  const std::int32_t* columns = nullptr;   ///< device memory
  std::int64_t count = 0, base = 0;        ///< of the view, of a row of the base
};

/// dense = base's columns; `bytes` of an element: 1, 2, 4 or 8.
void gather_columns(const void* base, void* dense, std::int64_t rows, const Columns& columns, std::int64_t bytes, cudaStream_t stream);
/// base's columns = dense.
void scatter_columns(const void* dense, void* base, std::int64_t rows, const Columns& columns, std::int64_t bytes, cudaStream_t stream);
/// to = scale from (+ to), between f32, bf16 and f16, or between equal types of 4 bytes with scale 1. Throws InputError on other types.
void combine(const void* from, DType from_type, void* to, DType to_type, std::int64_t n, float scale, bool add, cudaStream_t stream);

/// to[c] = sum over the rows r of from[r, c] / (sum of row r), rows without a positive sum left out; f32, in a fixed order. `scratch` holds
/// `share_scratch(columns)` bytes.
void sum_shares(const float* from, float* to, std::int64_t rows, std::int64_t columns, float* scratch, cudaStream_t stream);
[[nodiscard]] std::int64_t share_scratch(std::int64_t columns);

/// to[i] = deviation x nearly_normal(state, i) / its own deviation (executor/backend/backend.hpp); f32, bf16 or f16.
void fill_normal(void* to, DType type, std::int64_t n, std::uint64_t state, float deviation, cudaStream_t stream);

}  // namespace moeplan::cuda
