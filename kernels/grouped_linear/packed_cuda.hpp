#pragma once
/// What grouped layers of frozen weights in 4 or 8 bits take: the calls of mxfp4_cuda.hpp and fp8_cuda.hpp, whose `Weights`
/// these are, for rows that are already permuted.

#include "kernels/grouped_linear/cuda.hpp"

namespace moeplan::kernels::grouped_linear {

/// As `Forward`.
template <class Weights>
struct PackedForward {
    Dims dims;
    const bf16* x = nullptr; ///< [rows, in]
    Weights weights;
    const bf16* bias = nullptr;
    const int* offsets = nullptr;
    const float* row_scale = nullptr;
    bf16* y = nullptr; ///< [rows, out]
    int* next = nullptr;
    LowRank adapter = {}; ///< FP8 alone
};

/// As `InputGradient`.
template <class Weights>
struct PackedInputGradient {
    Dims dims;
    const bf16* dy = nullptr; ///< [rows, out], in halves for an interleaved weight
    Weights weights;
    const int* offsets = nullptr;
    const float* row_scale = nullptr;
    GateLayout layout = GateLayout::halves; ///< FP8: halves
    bf16* dx = nullptr; ///< [rows, in]
    int* next = nullptr;
    LowRank adapter = {}; ///< FP8 alone
};

} // namespace moeplan::kernels::grouped_linear
