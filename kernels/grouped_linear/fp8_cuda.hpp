#pragma once
/// Grouped linear layers whose frozen weights stay in FP8, blocks of 128 x 128 with a scale: W8A16, dequantised in
/// registers, forward and input gradient, adapters added inside (Hopper; the order and `read_back` on any device). Results equal those of the bf16 kernels on the
/// dequantised weights but for ties where a weight is rounded to bf16.
///
/// Before their first use `arrange_weights` moves the bytes of each 16 columns where they lie (`place` of fp8.hpp).

#include "kernels/grouped_linear/packed_cuda.hpp"

namespace moeplan::kernels::grouped_linear::fp8 {

/// codes[bytes], a multiple of 16, from the order of the format to that of the kernels, in place.
void arrange_weights(std::uint8_t* codes, std::int64_t bytes, cudaStream_t stream);

/// plain[rows, columns] in bf16 of arranged codes and their scales [rows / 128, ceil(columns / 128)]; columns a multiple of 16.
void read_back(const std::uint8_t* codes, const float* scales, std::int64_t rows, std::int64_t columns, bf16* plain, cudaStream_t stream);

struct Weights {
    const std::uint8_t* codes = nullptr; ///< [experts, out, in] arranged, 16-byte aligned
    const float* scales = nullptr;       ///< [experts, out / 128, ceil(in / 128)]
};

/// in a multiple of 64, out of 128.
using Forward = PackedForward<Weights>;
void forward(const Forward& args, cudaStream_t stream);
using InputGradient = PackedInputGradient<Weights>;
void input_gradient(const InputGradient& args, cudaStream_t stream);

} // namespace moeplan::kernels::grouped_linear::fp8
