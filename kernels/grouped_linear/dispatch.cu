/// \file
/// Host side of grouped_linear: refusals, tensor maps, choice of configuration.
#include "kernels/grouped_linear/gemm_kernel.cuh"
#include "kernels/grouped_linear/host_checks.hpp"
#include "kernels/grouped_linear/pairs.hpp"
#include "kernels/grouped_linear/portable.hpp"

namespace moeplan::kernels::grouped_linear {
namespace {

template <bool gated, Major major>
void dispatch(const Maps& maps, const Problem& problem, const Dims& d, Clusters clusters, cudaStream_t stream) {
    const bool pairs = clusters == Clusters::pairs || (clusters == Clusters::automatic && takes_pairs(d.rows, d.experts));
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

} // namespace

void forward(const Forward& a, cudaStream_t stream) {
    check_dims(a.dims, false, a.portable);
    if (a.dims.rows == 0) return;
    check_pointer(a.x, "x", a.dims);
    check_pointer(a.weight, "weight", a.dims);
    check_pointer(a.y, "y", a.dims);
    check_adapter(a.adapter, a.dims);
    if (a.portable) return portable::forward(a, stream);
    Maps maps{};
    maps.weight = weight_map(a.weight, a.dims, 1, GateLayout::halves, 128);
    token_maps(maps, a.x, a.x_rows, a.dims.in, 1);
    Problem problem{.offsets = a.offsets,
                          .experts = a.dims.experts,
                          .row_tiles = divide_up(a.dims.out, tile_rows),
                          .halves = 1,
                          .half_steps = divide_up(a.dims.in, step_k),
                          .contraction = a.dims.in,
                          .tokens = a.x,
                          .gather = a.gather,
                          .adapter_rank = 0,
                          .adapter_shared = false,
                          .output = {.y = a.y,
                                     .pre = nullptr,
                                     .columns = a.dims.out,
                                     .bias = a.bias,
                                     .interleaved_bias = false,
                                     .row_scale = a.row_scale,
                                     .activation = GatedActivation::swiglu,
                                     .alpha = a.alpha},
                          .next = a.next};
    Dims factor = a.dims;
    factor.in = a.adapter.rank;
    add_adapter(maps, problem, a.adapter, a.dims, factor, 1, GateLayout::halves, 128);
    dispatch<false, Major::k>(maps, problem, a.dims, a.clusters, stream);
}

void gated_forward(const GatedForward& a, cudaStream_t stream) {
    check_dims(a.dims, true);
    if (a.dims.rows == 0) return;
    check_pointer(a.x, "x", a.dims);
    check_pointer(a.weight, "weight", a.dims);
    check_pointer(a.y, "y", a.dims);
    check_adapter(a.adapter, a.dims);
    Maps maps{};
    maps.weight = weight_map(a.weight, a.dims, 2, a.layout, 128);
    token_maps(maps, a.x, a.x_rows, a.dims.in, 1);
    Problem problem{.offsets = a.offsets,
                          .experts = a.dims.experts,
                          .row_tiles = divide_up(a.dims.out / 2, tile_rows / 2),
                          .halves = 1,
                          .half_steps = divide_up(a.dims.in, step_k),
                          .contraction = a.dims.in,
                          .tokens = a.x,
                          .gather = a.gather,
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
    Dims factor = a.dims;
    factor.in = a.adapter.rank;
    add_adapter(maps, problem, a.adapter, a.dims, factor, 2, a.layout, 128);
    dispatch<true, Major::k>(maps, problem, a.dims, a.clusters, stream);
}

void input_gradient(const InputGradient& a, cudaStream_t stream) {
    const bool interleaved = a.layout == GateLayout::interleaved;
    check_dims(a.dims, interleaved, a.portable);
    if (a.dims.rows == 0) return;
    check_pointer(a.dy, "dy", a.dims);
    check_pointer(a.weight, "weight", a.dims);
    check_pointer(a.dx, "dx", a.dims);
    check_adapter(a.adapter, a.dims);
    if (a.portable) return portable::input_gradient(a, stream);
    const int halves = interleaved ? 2 : 1;
    Maps maps{};
    maps.weight = weight_map(a.weight, a.dims, halves, a.layout, 64);
    token_maps(maps, a.dy, a.dy_rows, a.dims.out / halves, halves);
    Problem problem{.offsets = a.offsets,
                          .experts = a.dims.experts,
                          .row_tiles = divide_up(a.dims.in, tile_rows),
                          .halves = halves,
                          .half_steps = divide_up(a.dims.out / halves, step_k),
                          .contraction = a.dims.out / halves,
                          .tokens = a.dy,
                          .gather = a.gather,
                          .adapter_rank = 0,
                          .adapter_shared = false,
                          .output = {.y = a.dx,
                                     .pre = nullptr,
                                     .columns = a.dims.in,
                                     .bias = nullptr,
                                     .interleaved_bias = false,
                                     .row_scale = a.row_scale,
                                     .activation = GatedActivation::swiglu,
                                     .alpha = a.alpha},
                          .next = a.next};
    Dims factor = a.dims;
    factor.out = a.adapter.rank;
    add_adapter(maps, problem, a.adapter, a.dims, factor, 1, GateLayout::halves, 64);
    dispatch<false, Major::mn>(maps, problem, a.dims, a.clusters, stream);
}

} // namespace moeplan::kernels::grouped_linear
