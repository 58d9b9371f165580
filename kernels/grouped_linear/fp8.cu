/// \file
/// Host side of the FP8 layers.
#include "kernels/grouped_linear/fp8_cuda.hpp"
#include "kernels/grouped_linear/fp8_format.cuh"
#include "kernels/grouped_linear/host_checks.hpp"

namespace moeplan::kernels::grouped_linear::fp8 {
namespace {

/// What both passes share; `a` is either's arguments.
template <bool gradient, class Arguments>
void multiply(const Arguments& a, const bf16* tokens, const bf16* bias, bf16* to, cudaStream_t stream) {
    const Dims& d = a.dims;
    const Weights& w = a.weights;
    check_dims(d, false);
    require(d.in % 64 == 0 && d.out % 128 == 0, d, "FP8 needs in a multiple of 64 and out of 128; dequantise and use the bf16 layer");
    if (d.rows == 0) return;
    check_pointer(tokens, gradient ? "dy" : "x", d);
    check_pointer(to, gradient ? "dx" : "y", d);
    check_pointer(w.codes, "FP8 codes", d);
    require(w.scales != nullptr, d, "the scales are null");
    const std::uint64_t in = d.in, out = d.out;
    const int contraction = gradient ? d.out : d.in, columns = gradient ? d.in : d.out;
    Maps maps{};
    maps.weight = make_tensor_map(TensorTile<3>{.type = TensorType::u8,
                                                .base = w.codes,
                                                .sizes = {in, out, static_cast<std::uint64_t>(d.experts)},
                                                .strides = {in, in * out},
                                                .box = {128, 128, 1}},
                                  "FP8 weights");
    token_maps(maps, tokens, d.rows, contraction, 1);
    Problem problem{.offsets = a.offsets,
                    .experts = d.experts,
                    .row_tiles = divide_up(columns, tile_rows),
                    .halves = 1,
                    .half_steps = divide_up(contraction, packed::step),
                    .contraction = contraction,
                    .tokens = nullptr,
                    .gather = nullptr,
                    .adapter_rank = 0,
                    .adapter_shared = false,
                    .output = {.y = to,
                               .pre = nullptr,
                               .columns = columns,
                               .bias = bias,
                               .interleaved_bias = false,
                               .row_scale = a.row_scale,
                               .activation = GatedActivation::swiglu},
                    .next = a.next};
    Dims factor = d;
    (gradient ? factor.out : factor.in) = a.adapter.rank;
    add_adapter(maps, problem, a.adapter, d, factor, 1, GateLayout::halves, gradient ? 64 : 128);
    packed::launch_packed<Format<gradient>>(maps, problem, {CUtensorMap{}, w.scales, d.in, d.out}, d, stream);
}

} // namespace

void forward(const Forward& a, cudaStream_t stream) { multiply<false>(a, a.x, a.bias, a.y, stream); }

void input_gradient(const InputGradient& a, cudaStream_t stream) {
    require(a.layout == GateLayout::halves, a.dims, "FP8 weights are read in halves");
    multiply<true>(a, a.dy, nullptr, a.dx, stream);
}

} // namespace moeplan::kernels::grouped_linear::fp8
