/// \file
/// Host side of the MXFP4 layers and the one-off transposition of scales.
#include "kernels/base/tma.hpp"
#include "kernels/grouped_linear/host_checks.hpp"
#include "kernels/grouped_linear/mxfp4.hpp"
#include "kernels/grouped_linear/mxfp4_cuda.hpp"
#include "kernels/grouped_linear/mxfp4_format.cuh"

namespace moeplan::kernels::grouped_linear::mxfp4 {
namespace {

__global__ void __launch_bounds__(256) transpose_scales(std::int64_t count, int out, int blocks, bool interleaved,
                                                        const std::uint8_t* scales, std::uint8_t* prepared) {
    const std::int64_t i = blockIdx.x * 256ll + threadIdx.x; // over prepared
    if (i >= count) return;
    const int row = static_cast<int>(i % out);
    const std::int64_t rest = i / out;
    const int block = static_cast<int>(rest % blocks);
    const std::int64_t expert = rest / blocks;
    const int stored = !interleaved ? row : row < out / 2 ? 2 * row : 2 * (row - out / 2) + 1;
    const std::uint8_t s = scales[(expert * out + stored) * blocks + block];
    prepared[i] = s > 192 ? 192 : s;
}

__global__ void __launch_bounds__(256) arrange_blocks(std::int64_t count, uint4* blocks) {
    const std::int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= count) return;
    const uint4 v = blocks[i];
    std::uint32_t out[4];
    arrange({v.x, v.y, v.z, v.w}, out);
    blocks[i] = make_uint4(out[0], out[1], out[2], out[3]);
}

CUtensorMap packed_map(const Weights& w, const Dims& d, int halves, GateLayout layout, bool gradient) {
    const std::uint64_t bytes = d.in / 2, rows = d.out / halves;
    const bool interleaved = layout == GateLayout::interleaved;
    const TensorTile<4> tile{
        .type = TensorType::u8,
        .base = w.packed,
        .sizes = {bytes, static_cast<std::uint64_t>(halves), rows, static_cast<std::uint64_t>(d.experts)},
        .strides = {interleaved ? bytes : rows * bytes, interleaved ? bytes * halves : bytes,
                    static_cast<std::uint64_t>(d.out) * bytes},
        .box = {gradient ? 128u : 64u, 1, 128, 1},
        .swizzle = gradient ? TensorSwizzle::bytes_128 : TensorSwizzle::bytes_64};
    return make_tensor_map(tile, "MXFP4 weights");
}

CUtensorMap scale_map(const Weights& w, const Dims& d, bool gradient) {
    const std::uint64_t out = d.out, blocks = d.in / block;
    return make_tensor_map(TensorTile<3>{.type = TensorType::u8,
                                         .base = w.prepared,
                                         .sizes = {out, blocks, static_cast<std::uint64_t>(d.experts)},
                                         .strides = {out, out * blocks},
                                         .box = {128, gradient ? 8u : 4u, 1},
                                         .swizzle = TensorSwizzle::none},
                           "MXFP4 scales");
}

void check_weights(const Weights& w, const Dims& d) {
    check_pointer(w.packed, "packed weights", d);
    check_pointer(w.prepared, "prepared scales", d);
}

void refuse_adapter(const LowRank& adapter, const Dims& d) {
    require(adapter.rank == 0, d, "an adapter of MXFP4 weights is a product beside theirs");
}

template <bool gated, bool gradient>
void launch(const Maps& maps, const Problem& problem, const Weights& w, const Dims& d, cudaStream_t stream) {
    packed::launch_packed<Format<gated, gradient>>(maps, problem, {scale_map(w, d, gradient), nullptr, d.in, d.out}, d, stream);
}

} // namespace

void prepare_scales(const Dims& d, GateLayout layout, const std::uint8_t* scales, std::uint8_t* prepared,
                    cudaStream_t stream) {
    require(d.in % block == 0, d, "MXFP4 needs an input width that is a multiple of 32");
    const std::int64_t count = static_cast<std::int64_t>(d.experts) * d.out * (d.in / block);
    if (count == 0) return;
    transpose_scales<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(
        count, d.out, d.in / block, layout == GateLayout::interleaved, scales, prepared);
    check_launch("MXFP4 scales", describe(d));
}

void arrange_weights(std::uint8_t* packed, std::int64_t bytes, cudaStream_t stream) {
    const std::int64_t count = bytes / 16;
    if (count == 0) return;
    arrange_blocks<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(count, reinterpret_cast<uint4*>(packed));
    check_launch("MXFP4 weights", "bytes=" + std::to_string(bytes));
}

void forward(const Forward& a, cudaStream_t stream) {
    check_dims(a.dims, false);
    refuse_adapter(a.adapter, a.dims);
    require(a.dims.in % 64 == 0 && a.dims.out % 16 == 0, a.dims,
            "MXFP4 needs in a multiple of 64 and out of 16; dequantise and use the bf16 layer");
    if (a.dims.rows == 0) return;
    check_pointer(a.x, "x", a.dims);
    check_pointer(a.y, "y", a.dims);
    check_weights(a.weights, a.dims);
    Maps maps{};
    maps.weight = packed_map(a.weights, a.dims, 1, GateLayout::halves, false);
    token_maps(maps, a.x, a.dims.rows, a.dims.in, 1);
    const Problem problem{.offsets = a.offsets,
                          .experts = a.dims.experts,
                          .row_tiles = divide_up(a.dims.out, tile_rows),
                          .halves = 1,
                          .half_steps = divide_up(a.dims.in, packed::step),
                          .contraction = a.dims.in,
                          .tokens = nullptr,
                          .gather = nullptr,
                          .adapter_rank = 0,
                          .adapter_shared = false,
                          .output = {.y = a.y,
                                     .pre = nullptr,
                                     .columns = a.dims.out,
                                     .bias = a.bias,
                                     .interleaved_bias = false,
                                     .row_scale = a.row_scale,
                                     .activation = GatedActivation::swiglu},
                          .next = a.next};
    launch<false, false>(maps, problem, a.weights, a.dims, stream);
}

void gated_forward(const GatedForward& a, cudaStream_t stream) {
    check_dims(a.dims, true);
    require(a.dims.in % 64 == 0 && a.dims.out % 32 == 0, a.dims,
            "gated MXFP4 needs in a multiple of 64 and out of 32; dequantise and use the bf16 layer");
    if (a.dims.rows == 0) return;
    check_pointer(a.x, "x", a.dims);
    check_pointer(a.y, "y", a.dims);
    check_weights(a.weights, a.dims);
    Maps maps{};
    maps.weight = packed_map(a.weights, a.dims, 2, a.layout, false);
    token_maps(maps, a.x, a.dims.rows, a.dims.in, 1);
    const Problem problem{.offsets = a.offsets,
                          .experts = a.dims.experts,
                          .row_tiles = divide_up(a.dims.out / 2, tile_rows / 2),
                          .halves = 1,
                          .half_steps = divide_up(a.dims.in, packed::step),
                          .contraction = a.dims.in,
                          .tokens = nullptr,
                          .gather = nullptr,
                          .adapter_rank = 0,
                          .adapter_shared = false,
                          .output = {.y = a.y,
                                     .pre = a.pre,
                                     .columns = a.dims.out / 2,
                                     .bias = a.bias,
                                     .interleaved_bias = a.layout == GateLayout::interleaved,
                                     .row_scale = nullptr,
                                     .activation = a.activation},
                          .next = a.next};
    launch<true, false>(maps, problem, a.weights, a.dims, stream);
}

void input_gradient(const InputGradient& a, cudaStream_t stream) {
    const bool interleaved = a.layout == GateLayout::interleaved;
    const int halves = interleaved ? 2 : 1;
    check_dims(a.dims, false);
    refuse_adapter(a.adapter, a.dims);
    require(a.dims.in % 32 == 0 && a.dims.out % (64 * halves) == 0, a.dims,
            "the MXFP4 input gradient needs in a multiple of 32 and out of 64 (interleaved: of 128); dequantise and "
            "use the bf16 layer");
    if (a.dims.rows == 0) return;
    check_pointer(a.dy, "dy", a.dims);
    check_pointer(a.dx, "dx", a.dims);
    check_weights(a.weights, a.dims);
    Maps maps{};
    maps.weight = packed_map(a.weights, a.dims, halves, a.layout, true);
    token_maps(maps, a.dy, a.dims.rows, a.dims.out / halves, halves);
    const Problem problem{.offsets = a.offsets,
                          .experts = a.dims.experts,
                          .row_tiles = divide_up(a.dims.in, tile_rows),
                          .halves = halves,
                          .half_steps = divide_up(a.dims.out / halves, packed::step),
                          .contraction = a.dims.out / halves,
                          .tokens = nullptr,
                          .gather = nullptr,
                          .adapter_rank = 0,
                          .adapter_shared = false,
                          .output = {.y = a.dx,
                                     .pre = nullptr,
                                     .columns = a.dims.in,
                                     .bias = nullptr,
                                     .interleaved_bias = false,
                                     .row_scale = a.row_scale,
                                     .activation = GatedActivation::swiglu},
                          .next = a.next};
    launch<false, true>(maps, problem, a.weights, a.dims, stream);
}

} // namespace moeplan::kernels::grouped_linear::mxfp4
