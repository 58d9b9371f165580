#pragma once
/// Sorting by expert, row gather and its backward on the GPU. Definitions: reference.hpp of this folder.
/// All orders are fixed, so results are bit-equal from run to run; nothing is read back to the host.

#include "kernels/base/cuda.hpp"
#include "kernels/permute/dims.hpp"

#include <cuda_bf16.h>

namespace moeplan::kernels::permute {

struct Sort {
    Dims dims;
    const int* experts = nullptr;    ///< [t, k]; a token's experts are distinct; -1: the copy goes nowhere
    const int* first_copy = nullptr; ///< [experts + 1] or absent
    int* offsets = nullptr;          ///< [copies + 1]
    int* token_of = nullptr;         ///< [t k]
    int* row_of = nullptr;           ///< [t k]
    void* workspace = nullptr;       ///< workspace_bytes(dims)
};
void sort(const Sort& args, cudaStream_t stream);
[[nodiscard]] std::size_t workspace_bytes(const Dims& dims);

/// permuted[row_of[t, j]] = x[t], rows of `h` bf16 (a multiple of 8). Rows past the kept ones are not written.
void forward(const Dims& dims, int h, const int* row_of, const __nv_bfloat16* x, __nv_bfloat16* permuted,
             cudaStream_t stream);
/// dx[t] = sum over j of dpermuted[row_of[t, j]], fp32 sums in the order of j.
void backward(const Dims& dims, int h, const int* row_of, const __nv_bfloat16* dpermuted, __nv_bfloat16* dx,
              cudaStream_t stream);

} // namespace moeplan::kernels::permute
