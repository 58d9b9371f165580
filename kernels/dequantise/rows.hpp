#pragma once
/// Some rows of a block-quantised matrix, for weights that are never plain as a whole.

#include "kernels/cuda_frame.hpp"

namespace moeplan::cuda {

/// y [count, columns] in bf16 = rows `first` to `first + count` of the matrix [rows, columns] that lies at `x` as `stored_bytes` says
/// (kernels/quantise/stored.cuh). fp8: rows of a block that spans others are read with that block's scale.
void dequantise_rows(DType from, std::int64_t rows, std::int64_t columns, std::int64_t first, std::int64_t count, const void* x, __nv_bfloat16* y, cudaStream_t stream);

}  // namespace moeplan::cuda
