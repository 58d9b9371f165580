/// \file
/// Host side of grouped_linear: refusals, tensor maps, choice of configuration.
#include "kernels/base/tma.hpp"
#include "kernels/grouped_linear/gemm_kernel.cuh"

namespace moeplan::kernels::grouped_linear {
namespace {

std::string describe(const Dims& d) {
    return "experts=" + std::to_string(d.experts) + " rows=" + std::to_string(d.rows) + " in=" + std::to_string(d.in) +
           " out=" + std::to_string(d.out);
}

void require(bool holds, const Dims& d, const std::string& why) {
    if (!holds) throw UnsupportedShape("grouped_linear [" + describe(d) + "]: " + why);
}

void check_dims(const Dims& d, bool gated) {
    require(d.experts >= 1 && d.experts <= max_experts, d,
            "1 to " + std::to_string(max_experts) + " experts in one call; split the experts over calls");
    require(d.rows >= 0 && d.in > 0 && d.out > 0, d, "sizes must be positive");
    require(d.in % 8 == 0, d, "the input width must be a multiple of 8 (16-byte rows); pad it, or use the reference");
    require(d.out % (gated ? 16 : 8) == 0, d,
            gated ? "the gate-up width must be a multiple of 16; pad it, or use the reference"
                  : "the output width must be a multiple of 8 (16-byte rows); pad it, or use the reference");
    require(device_facts().compute_capability == 90, d, "this kernel needs a Hopper GPU (sm_90); use the reference");
}

void check_pointer(const void* pointer, const char* name, const Dims& d) {
    require(pointer != nullptr, d, std::string(name) + " is null");
    require(reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0, d, std::string(name) + " is not 16-byte aligned");
}

/// Token rows [rows, halves * width] as (width, halves, rows).
void token_maps(Maps& maps, const bf16* base, int rows, int width, int halves) {
    const std::uint64_t pitch = static_cast<std::uint64_t>(width) * halves * 2;
    TensorTile<3> tile{.base = base,
                       .sizes = {static_cast<std::uint64_t>(width), static_cast<std::uint64_t>(halves),
                                 static_cast<std::uint64_t>(rows)},
                       .strides = {static_cast<std::uint64_t>(width) * 2, pitch},
                       .box = {64, 1, 16}};
    maps.tokens_16 = make_tensor_map(tile, "token rows");
    tile.box = {64, 1, 64};
    maps.tokens_64 = make_tensor_map(tile, "token rows");
}

/// One expert's weight [out, in] as (in, halves, out / halves), rows of a half adjacent or interleaved.
CUtensorMap weight_map(const bf16* base, const Dims& d, int halves, GateLayout layout, std::uint32_t box_rows) {
    const std::uint64_t in = d.in, rows = d.out / halves;
    const bool interleaved = layout == GateLayout::interleaved;
    const TensorTile<4> tile{
        .base = base,
        .sizes = {in, static_cast<std::uint64_t>(halves), rows, static_cast<std::uint64_t>(d.experts)},
        .strides = {interleaved ? in * 2 : rows * in * 2, interleaved ? in * 2 * halves : in * 2,
                    static_cast<std::uint64_t>(d.out) * in * 2},
        .box = {64, 1, box_rows, 1}};
    return make_tensor_map(tile, "weights");
}

template <bool gated, Major major>
void dispatch(const Maps& maps, const Problem& problem, const Dims& d, Clusters clusters, cudaStream_t stream) {
    // Pairs halve the weight traffic from L2 to the multiprocessors when an expert has two token tiles or more. Below
    // that there is nothing to share; far above it the launch is bound by arithmetic and the lockstep of two blocks
    // costs up to 10 % (measured at 1024 rows per expert).
    const bool pairs = clusters == Clusters::pairs || (clusters == Clusters::automatic && d.rows > 160ll * d.experts &&
                                                       d.rows <= 512ll * d.experts);
    const std::string shape = describe(d);
    if (problem.gather != nullptr) {
        if (pairs)
            launch<Config<gated, major, true, 2>>(maps, problem, shape, stream);
        else
            launch<Config<gated, major, true, 1>>(maps, problem, shape, stream);
    } else {
        if (pairs)
            launch<Config<gated, major, false, 2>>(maps, problem, shape, stream);
        else
            launch<Config<gated, major, false, 1>>(maps, problem, shape, stream);
    }
}

int divide_up(int a, int b) { return (a + b - 1) / b; }

} // namespace

void forward(const Forward& a, cudaStream_t stream) {
    check_dims(a.dims, false);
    if (a.dims.rows == 0) return;
    check_pointer(a.x, "x", a.dims);
    check_pointer(a.weight, "weight", a.dims);
    check_pointer(a.y, "y", a.dims);
    Maps maps{};
    maps.weight = weight_map(a.weight, a.dims, 1, GateLayout::halves, 128);
    token_maps(maps, a.x, a.x_rows, a.dims.in, 1);
    const Problem problem{.offsets = a.offsets,
                          .experts = a.dims.experts,
                          .row_tiles = divide_up(a.dims.out, tile_rows),
                          .halves = 1,
                          .half_steps = divide_up(a.dims.in, step_k),
                          .contraction = a.dims.in,
                          .tokens = a.x,
                          .gather = a.gather,
                          .output = {.y = a.y,
                                     .pre = nullptr,
                                     .columns = a.dims.out,
                                     .bias = a.bias,
                                     .interleaved_bias = false,
                                     .row_scale = a.row_scale,
                                     .activation = GatedActivation::swiglu}};
    dispatch<false, Major::k>(maps, problem, a.dims, a.clusters, stream);
}

void gated_forward(const GatedForward& a, cudaStream_t stream) {
    check_dims(a.dims, true);
    if (a.dims.rows == 0) return;
    check_pointer(a.x, "x", a.dims);
    check_pointer(a.weight, "weight", a.dims);
    check_pointer(a.y, "y", a.dims);
    Maps maps{};
    maps.weight = weight_map(a.weight, a.dims, 2, a.layout, 128);
    token_maps(maps, a.x, a.x_rows, a.dims.in, 1);
    const Problem problem{.offsets = a.offsets,
                          .experts = a.dims.experts,
                          .row_tiles = divide_up(a.dims.out / 2, tile_rows / 2),
                          .halves = 1,
                          .half_steps = divide_up(a.dims.in, step_k),
                          .contraction = a.dims.in,
                          .tokens = a.x,
                          .gather = a.gather,
                          .output = {.y = a.y,
                                     .pre = a.pre,
                                     .columns = a.dims.out / 2,
                                     .bias = a.bias,
                                     .interleaved_bias = a.layout == GateLayout::interleaved,
                                     .row_scale = nullptr,
                                     .activation = a.activation}};
    dispatch<true, Major::k>(maps, problem, a.dims, a.clusters, stream);
}

void input_gradient(const InputGradient& a, cudaStream_t stream) {
    const bool interleaved = a.layout == GateLayout::interleaved;
    check_dims(a.dims, interleaved);
    if (a.dims.rows == 0) return;
    check_pointer(a.dy, "dy", a.dims);
    check_pointer(a.weight, "weight", a.dims);
    check_pointer(a.dx, "dx", a.dims);
    const int halves = interleaved ? 2 : 1;
    Maps maps{};
    maps.weight = weight_map(a.weight, a.dims, halves, a.layout, 64);
    token_maps(maps, a.dy, a.dy_rows, a.dims.out / halves, halves);
    const Problem problem{.offsets = a.offsets,
                          .experts = a.dims.experts,
                          .row_tiles = divide_up(a.dims.in, tile_rows),
                          .halves = halves,
                          .half_steps = divide_up(a.dims.out / halves, step_k),
                          .contraction = a.dims.out / halves,
                          .tokens = a.dy,
                          .gather = a.gather,
                          .output = {.y = a.dx,
                                     .pre = nullptr,
                                     .columns = a.dims.in,
                                     .bias = nullptr,
                                     .interleaved_bias = false,
                                     .row_scale = a.row_scale,
                                     .activation = GatedActivation::swiglu}};
    dispatch<false, Major::mn>(maps, problem, a.dims, a.clusters, stream);
}

} // namespace moeplan::kernels::grouped_linear
