#include "kernels/grouped_linear/fp8.hpp"

#include <cuda_fp8.h>

#include "kernels/grouped_linear/fp8_cuda.hpp"
#include "kernels/grouped_linear/reference.hpp"
#include "tests/kernels/moe_cuda_support.hpp"

namespace gl = moeplan::kernels::grouped_linear;
namespace ref = moeplan::kernels::grouped_linear::reference;
using namespace moeplan::tests;

namespace {

std::vector<std::uint8_t> arranged(std::vector<std::uint8_t> codes) {
    const std::vector<std::uint8_t> stored = codes;
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i / 16 * 16 + static_cast<std::size_t>(gl::fp8::place(static_cast<int>(i % 16)))] = stored[i];
    return codes;
}

/// Forward and input gradient against fp64 on the dequantised weights; a pair of `rank`, one a expert, where it is not 0.
void compare(const std::vector<int>& counts, int in, int out, int rank = 0) {
    std::vector<int> offsets{0};
    for (int n : counts) offsets.push_back(offsets.back() + n);
    const gl::Dims dims{.experts = static_cast<int>(counts.size()), .rows = offsets.back(), .in = in, .out = out};
    const std::size_t experts = counts.size(), rows = static_cast<std::size_t>(dims.rows), wide = (static_cast<std::size_t>(in) + 127) / 128;
    std::mt19937 engine(7);
    std::vector<std::uint8_t> codes(experts * out * in);
    std::vector<float> scales(experts * out / 128 * wide);
    for (auto& c : codes) {
        c = static_cast<std::uint8_t>(engine()); // every code but NaN
        if ((c & 127) == 127) c = 1;
    }
    for (auto& s : scales) s = std::exp2(-8.0f - 8.0f * static_cast<float>(engine() % 1000) / 1000.0f); // no power of two
    std::vector<double> weight(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
        __nv_fp8_e4m3 value;
        value.__x = codes[i];
        weight[i] = static_cast<double>(static_cast<float>(value)) * scales[i / in / 128 * wide + i % in / 128];
    }
    const auto x = bf16_values(rows * in, 1), dy = bf16_values(rows * out, 2), a = bf16_values(experts * rank * in, 3, 1 / std::sqrt(in)),
               b = bf16_values(experts * out * rank, 4), bias = bf16_values(experts * out, 5);
    const auto d_offsets = DeviceBuffer::of(offsets);
    const auto dx = upload_bf16(x), ddy = upload_bf16(dy), da = upload_bf16(a), db = upload_bf16(b), d_bias = upload_bf16(bias), d_scales = DeviceBuffer::of(scales);
    const auto d_codes = DeviceBuffer::of(codes);
    gl::fp8::arrange_weights(d_codes.get<std::uint8_t>(), static_cast<std::int64_t>(codes.size()), nullptr);
    EXPECT_EQ(d_codes.download<std::uint8_t>(), arranged(codes));
    DeviceBuffer low = poisoned(std::max<std::size_t>(16, rows * rank * 2)), back = poisoned(low.bytes()), y = poisoned(dy.size() * 2), gx = poisoned(x.size() * 2), again = poisoned(y.bytes());
    gl::LowRank forward{}, backward{};
    if (rank > 0) {
        gl::low_rows({.factors = dims.experts, .rows = dims.rows, .width = in, .rank = rank, .from = dx.get<bf16>(), .factor = da.get<bf16>(), .offsets = d_offsets.get<int>(), .low = low.get<bf16>()}, nullptr);
        gl::low_rows({.factors = dims.experts, .rows = dims.rows, .width = out, .rank = rank, .gradient = true, .from = ddy.get<bf16>(), .factor = db.get<bf16>(), .offsets = d_offsets.get<int>(), .low = back.get<bf16>()}, nullptr);
        forward = {.rank = rank, .low = low.get<bf16>(), .factor = db.get<bf16>()}, backward = {.rank = rank, .low = back.get<bf16>(), .factor = da.get<bf16>()};
    }
    const gl::fp8::Weights w{d_codes.get<std::uint8_t>(), d_scales.get<float>()};
    const auto next = DeviceBuffer::of(std::vector<int>{0});
    DeviceBuffer gx_again = poisoned(gx.bytes());
    for (const bool dealt : {false, true}) {
        int* const counter = dealt ? next.get<int>() : nullptr;
        gl::fp8::forward({.dims = dims, .x = dx.get<bf16>(), .weights = w, .bias = d_bias.get<bf16>(), .offsets = d_offsets.get<int>(), .y = (dealt ? again : y).get<bf16>(), .next = counter, .adapter = forward}, nullptr);
        gl::fp8::input_gradient({.dims = dims, .dy = ddy.get<bf16>(), .weights = w, .offsets = d_offsets.get<int>(), .dx = (dealt ? gx_again : gx).get<bf16>(), .next = counter, .adapter = backward}, nullptr);
    }
    EXPECT_EQ(next.download<int>()[0], 0);
    DeviceBuffer plain = poisoned(codes.size() * 2);
    gl::fp8::read_back(w.codes, w.scales, dims.experts * out, in, plain.get<bf16>(), nullptr);
    EXPECT_LT(relative_error(download_bf16(plain), weight), 2e-3);
    const ref::Layer<double> layer{.dims = dims, .offsets = offsets, .gather = {}, .weight = weight, .bias = bias, .row_scale = {}, .adapter = {.rank = rank, .scale = 1, .a = a, .b = b}};
    std::vector<double> want_y(dy.size()), want_x(x.size());
    ref::forward<double>(layer, x, want_y);
    ref::input_gradient<double>(layer, dy, want_x);
    EXPECT_LT(relative_error(download_bf16(y), want_y), 4e-3); // weights and results are rounded to bf16
    EXPECT_LT(relative_error(download_bf16(gx), want_x), 4e-3);
    EXPECT_EQ(y.download<std::uint16_t>(), again.download<std::uint16_t>()); // whoever computes a tile
    EXPECT_EQ(gx.download<std::uint16_t>(), gx_again.download<std::uint16_t>());
}

} // namespace

TEST(Fp8, restoring_undoes_the_order_of_the_kernels) {
    std::vector<std::uint8_t> codes(64);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
    std::vector<std::uint8_t> moved = arranged(codes);
    EXPECT_EQ(std::vector<std::uint8_t>(moved.begin(), moved.begin() + 4), (std::vector<std::uint8_t>{0, 8, 1, 9}));
    gl::fp8::restore(std::as_writable_bytes(std::span(moved)));
    EXPECT_EQ(moved, codes);
}

TEST(Fp8Cuda, equals_dequantise_then_multiply_for_ragged_experts) {
    MOEPLAN_NEEDS_GPU();
    compare({0, 1, 7, 127, 129, 0, 40}, 128, 384);
    compare({0, 0, 513, 0}, 64, 256);
    compare({33, 2}, 320, 128); // half a block at the end of the rows
    compare({70, 0, 18}, 192, 640);
}

TEST(Fp8Cuda, adds_adapters_inside) {
    MOEPLAN_NEEDS_GPU();
    compare({0, 1, 7, 127, 129, 0, 40}, 192, 384, 16);
    compare({5, 300}, 320, 128, 80);
}
