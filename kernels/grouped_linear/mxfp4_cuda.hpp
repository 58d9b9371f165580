#pragma once
/// Grouped linear layers whose frozen weights stay in MXFP4 (mxfp4.hpp): W4A16, dequantised in registers, forward and
/// input gradient. Results equal those of the bf16 kernels on the dequantised weights but for the order of sums.
///
/// Before their first use `arrange_weights` moves the bits of each block, 16 bytes, where they lie (`arrange`), and
/// `prepare_scales` transposes the scales, 3 % of the bytes, because a tile then reads them in contiguous pieces whatever
/// the input width.

#include "kernels/grouped_linear/packed_cuda.hpp"

namespace moeplan::kernels::grouped_linear::mxfp4 {

/// scales [experts, out, in / 32] as stored to prepared [experts, in / 32, out]; interleaved rows come out as halves.
/// Scale bytes above 192 (2^65) are lowered to it; NaN scales (255) are not kept.
void prepare_scales(const Dims& dims, GateLayout layout, const std::uint8_t* scales, std::uint8_t* prepared,
                    cudaStream_t stream);

/// packed[bytes], a multiple of 16, from the order of the format to that of the kernels, in place.
void arrange_weights(std::uint8_t* packed, std::int64_t bytes, cudaStream_t stream);

struct Weights {
    const std::uint8_t* packed = nullptr;   ///< [experts, out, in / 2] arranged, 16-byte aligned
    const std::uint8_t* prepared = nullptr; ///< [experts, in / 32, out], 16-byte aligned
};

/// in a multiple of 64, out of 16.
using Forward = PackedForward<Weights>;
void forward(const Forward& args, cudaStream_t stream);

/// As grouped_linear::gated_forward, for permuted rows. in a multiple of 64, out of 32.
struct GatedForward {
    Dims dims;
    const bf16* x = nullptr;
    Weights weights;
    const bf16* bias = nullptr;
    const int* offsets = nullptr;
    GateLayout layout = GateLayout::halves;
    GatedActivation activation = GatedActivation::swiglu;
    bf16* y = nullptr;
    bf16* pre = nullptr;
    int* next = nullptr;
};
void gated_forward(const GatedForward& args, cudaStream_t stream);

/// in a multiple of 32, out of 64 (interleaved: of 128).
using InputGradient = PackedInputGradient<Weights>;
void input_gradient(const InputGradient& args, cudaStream_t stream);

} // namespace moeplan::kernels::grouped_linear::mxfp4
