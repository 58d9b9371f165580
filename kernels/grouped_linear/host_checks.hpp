#pragma once
/// Refusals and tensor maps that the grouped layers share on the host.

#include "kernels/base/tma.hpp"
#include "kernels/grouped_linear/gemm_kernel.cuh"

#include <string>

namespace moeplan::kernels::grouped_linear {

inline int divide_up(int a, int b) { return (a + b - 1) / b; }

inline std::string describe(const Dims& d) {
    return "experts=" + std::to_string(d.experts) + " rows=" + std::to_string(d.rows) + " in=" + std::to_string(d.in) +
           " out=" + std::to_string(d.out);
}

inline void require(bool holds, const Dims& d, const std::string& why) {
    if (!holds) throw UnsupportedShape("grouped_linear [" + describe(d) + "]: " + why);
}

inline void check_dims(const Dims& d, bool gated, bool portable = false) {
    require(d.experts >= 1 && d.experts <= max_experts, d,
            "1 to " + std::to_string(max_experts) + " experts in one call; split the experts over calls");
    require(d.rows >= 0 && d.in > 0 && d.out > 0, d, "sizes must be positive");
    require(d.in % 8 == 0, d, "the input width must be a multiple of 8 (16-byte rows); pad it, or use the reference");
    require(d.out % (gated ? 16 : 8) == 0, d,
            gated ? "the gate-up width must be a multiple of 16; pad it, or use the reference"
                  : "the output width must be a multiple of 8 (16-byte rows); pad it, or use the reference");
    require(portable || device_facts().compute_capability == 90, d,
            "this kernel needs a Hopper GPU (sm_90); use the portable form");
}

inline void check_pointer(const void* pointer, const char* name, const Dims& d) {
    require(pointer != nullptr, d, std::string(name) + " is null");
    require(reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0, d, std::string(name) + " is not 16-byte aligned");
}

inline void check_adapter(const LowRank& adapter, const Dims& d) {
    if (adapter.rank == 0) return;
    require(adapter.rank > 0 && adapter.rank % 8 == 0, d,
            "the adapter's rank is " + std::to_string(adapter.rank) + ", not a multiple of 8; pad it with zeros");
    check_pointer(adapter.low, "the adapter's low-rank rows", d);
    check_pointer(adapter.factor, "the adapter's factor", d);
}

/// Token rows [rows, halves * width] as (width, halves, rows).
inline void token_maps(Maps& maps, const bf16* base, int rows, int width, int halves) {
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
inline CUtensorMap weight_map(const bf16* base, const Dims& d, int halves, GateLayout layout, std::uint32_t box_rows) {
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

/// Maps of the second product; `factor` has `factor_dims` in the roles of in and out.
inline void add_adapter(Maps& maps, Problem& problem, const LowRank& adapter, const Dims& d, const Dims& factor_dims, int halves,
                 GateLayout layout, std::uint32_t box_rows) {
    if (adapter.rank == 0) return;
    Dims f = factor_dims;
    f.experts = adapter.shared ? 1 : d.experts;
    maps.adapter_weight = weight_map(adapter.factor, f, halves, layout, box_rows);
    Maps rows{};
    token_maps(rows, adapter.low, d.rows, adapter.rank, 1);
    maps.adapter_16 = rows.tokens_16;
    maps.adapter_64 = rows.tokens_64;
    problem.adapter_rank = adapter.rank;
    problem.adapter_shared = adapter.shared;
}

} // namespace moeplan::kernels::grouped_linear
