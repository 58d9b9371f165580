#include <bit>

#include "kernels/grouped_linear/mxfp4.hpp"
#include "kernels/grouped_linear/mxfp4_cuda.hpp"
#include "kernels/grouped_linear/reference.hpp"
#include "tests/kernels/moe_cuda_support.hpp"

namespace gl = moeplan::kernels::grouped_linear;
namespace fp4 = moeplan::kernels::grouped_linear::mxfp4;
namespace ref = moeplan::kernels::grouped_linear::reference;
using namespace moeplan::tests;
using moeplan::kernels::GatedActivation;

namespace {

struct Data {
    gl::Dims dims;
    gl::GateLayout layout;
    std::vector<int> offsets{0};
    std::vector<std::uint8_t> packed, scales;
    std::vector<double> x, dy, weight, halves, row_scale;

    Data(const std::vector<int>& counts, int in, int out, gl::GateLayout gate_layout = gl::GateLayout::halves)
        : layout(gate_layout) {
        for (int n : counts) offsets.push_back(offsets.back() + n);
        dims = {.experts = static_cast<int>(counts.size()), .rows = offsets.back(), .in = in, .out = out};
        const std::size_t values = static_cast<std::size_t>(dims.experts) * out * in;
        std::mt19937 engine(7);
        packed.resize(values / 2);
        scales.resize(values / 32);
        for (auto& b : packed) b = static_cast<std::uint8_t>(engine());                  // every nibble
        for (auto& s : scales) s = static_cast<std::uint8_t>(115 + engine() % 9);        // 2^-12 to 2^-4
        weight.resize(values);
        fp4::dequantise(packed, scales, weight);
        halves = weight; // rows reordered as the activations see them
        if (layout == gl::GateLayout::interleaved)
            for (int e = 0; e < dims.experts; ++e)
                for (int r = 0; r < out; ++r) {
                    const int stored = r < out / 2 ? 2 * r : 2 * (r - out / 2) + 1;
                    for (int i = 0; i < in; ++i)
                        halves[(static_cast<std::size_t>(e) * out + r) * in + i] =
                            weight[(static_cast<std::size_t>(e) * out + stored) * in + i];
                }
        x = bf16_values(static_cast<std::size_t>(dims.rows) * in, 1);
        dy = bf16_values(static_cast<std::size_t>(dims.rows) * out, 2);
        row_scale = bf16_values(dims.rows, 3);
    }
    ref::Layer<double> layer(bool scaled) const {
        return {.dims = dims, .offsets = offsets, .gather = {}, .weight = halves, .bias = {},
                .row_scale = scaled ? std::span<const double>(row_scale) : std::span<const double>(), .adapter = {}};
    }
};

struct Device {
    DeviceBuffer offsets, x, dy, packed, prepared, scale;
    explicit Device(const Data& d)
        : offsets(DeviceBuffer::of(d.offsets)), x(upload_bf16(d.x)), dy(upload_bf16(d.dy)),
          packed(DeviceBuffer::of(d.packed)), prepared(poisoned(d.scales.size())), scale(upload_as<float>(d.row_scale)) {
        const auto stored = DeviceBuffer::of(d.scales);
        fp4::prepare_scales(d.dims, d.layout, stored.get<std::uint8_t>(), prepared.get<std::uint8_t>(), nullptr);
        fp4::arrange_weights(packed.get<std::uint8_t>(), static_cast<std::int64_t>(d.packed.size()), nullptr);
        moeplan::kernels::check(cudaDeviceSynchronize(), "prepare weights");
    }
    fp4::Weights weights() const { return {packed.get<std::uint8_t>(), prepared.get<std::uint8_t>()}; }
};

void compare(const Data& data) {
    const Device d(data);
    DeviceBuffer y = poisoned(data.dy.size() * 2), dx = poisoned(data.x.size() * 2);
    if (data.layout == gl::GateLayout::halves) {
        fp4::forward({.dims = data.dims, .x = d.x.get<bf16>(), .weights = d.weights(),
                      .offsets = d.offsets.get<int>(), .row_scale = d.scale.get<float>(), .y = y.get<bf16>()},
                     nullptr);
        std::vector<double> want(data.dy.size());
        ref::forward<double>(data.layer(true), data.x, want);
        EXPECT_LT(relative_error(download_bf16(y), want), 3e-3);
    }
    fp4::input_gradient({.dims = data.dims, .dy = d.dy.get<bf16>(), .weights = d.weights(),
                         .offsets = d.offsets.get<int>(), .row_scale = d.scale.get<float>(), .layout = data.layout,
                         .dx = dx.get<bf16>()},
                        nullptr);
    std::vector<double> want(data.x.size());
    ref::input_gradient<double>(data.layer(true), data.dy, want);
    EXPECT_LT(relative_error(download_bf16(dx), want), 3e-3);

    // Whoever computes a tile, the bits are the same.
    const auto next = DeviceBuffer::of(std::vector<int>{0});
    DeviceBuffer dealt_y = poisoned(y.bytes()), dealt_dx = poisoned(dx.bytes());
    if (data.layout == gl::GateLayout::halves) {
        fp4::forward({.dims = data.dims, .x = d.x.get<bf16>(), .weights = d.weights(), .offsets = d.offsets.get<int>(),
                      .row_scale = d.scale.get<float>(), .y = dealt_y.get<bf16>(), .next = next.get<int>()},
                     nullptr);
        EXPECT_EQ(dealt_y.download<std::uint16_t>(), y.download<std::uint16_t>());
    }
    fp4::input_gradient({.dims = data.dims, .dy = d.dy.get<bf16>(), .weights = d.weights(), .offsets = d.offsets.get<int>(),
                         .row_scale = d.scale.get<float>(), .layout = data.layout, .dx = dealt_dx.get<bf16>(), .next = next.get<int>()},
                        nullptr);
    EXPECT_EQ(dealt_dx.download<std::uint16_t>(), dx.download<std::uint16_t>());
    EXPECT_EQ(next.download<int>()[0], 0);
}

} // namespace

TEST(Mxfp4, quantising_representable_values_loses_nothing) {
    std::vector<double> values;
    for (int i = 0; i < 32; ++i) values.push_back(fp4::decode(i % 16) * 0.25);
    std::vector<std::uint8_t> packed(16), scales(1);
    std::vector<double> back(32);
    fp4::quantise(values, packed, scales);
    fp4::dequantise(packed, scales, back);
    EXPECT_EQ(back, values);
}

TEST(Mxfp4, arranging_moves_every_bit_to_a_place_of_its_own) {
    std::uint32_t seen[4] = {};
    for (int bit = 0; bit < 128; ++bit) {
        std::uint32_t stored[4] = {}, arranged[4];
        stored[bit / 32] = 1u << bit % 32;
        fp4::arrange(stored, arranged);
        EXPECT_EQ(std::popcount(arranged[0]) + std::popcount(arranged[1]) + std::popcount(arranged[2]) + std::popcount(arranged[3]), 1);
        for (int j = 0; j < 4; ++j) seen[j] |= arranged[j];
        fp4::restore(arranged);
        EXPECT_TRUE(std::ranges::equal(arranged, stored)) << bit;
    }
    for (const std::uint32_t word : seen) EXPECT_EQ(word, ~0u);
}

TEST(Mxfp4Cuda, equals_dequantise_then_multiply_for_ragged_experts) {
    MOEPLAN_NEEDS_GPU();
    compare(Data({0, 1, 7, 127, 129, 0, 40}, 128, 320));
    compare(Data({0, 0, 513, 0}, 64, 256));
    compare(Data({33, 2}, 2880, 192));
    compare(Data({70, 0, 18}, 320, 64));
    compare(Data(std::vector<int>(40, 9), 64, 3072)); // more tiles than two blocks a multiprocessor
}

TEST(Mxfp4Cuda, gated_layer_of_both_layouts_equals_the_reference) {
    MOEPLAN_NEEDS_GPU();
    for (const auto layout : {gl::GateLayout::halves, gl::GateLayout::interleaved}) {
        const Data data({5, 0, 130, 16}, 192, 2 * 192, layout);
        compare(data); // the gradient through interleaved rows
        const Device d(data);
        DeviceBuffer y = poisoned(data.dy.size()), pre = poisoned(data.dy.size() * 2);
        fp4::gated_forward({.dims = data.dims, .x = d.x.get<bf16>(), .weights = d.weights(),
                            .offsets = d.offsets.get<int>(), .layout = layout,
                            .activation = GatedActivation::swiglu_clamped, .y = y.get<bf16>(), .pre = pre.get<bf16>()},
                           nullptr);
        std::vector<double> want_pre(data.dy.size()), want(data.dy.size() / 2);
        ref::forward<double>(data.layer(false), data.x, want_pre);
        EXPECT_LT(relative_error(download_bf16(pre), want_pre), 3e-3);
        ref::activate<double>(GatedActivation::swiglu_clamped, data.dims.rows, 192, download_bf16(pre), want);
        EXPECT_LT(relative_error(download_bf16(y), want), 3e-3);
    }
}

TEST(Mxfp4Cuda, refuses_an_adapter_by_name) {
    MOEPLAN_NEEDS_GPU();
    try {
        fp4::forward({.dims = {.experts = 1, .rows = 4, .in = 64, .out = 64}, .weights = {}, .adapter = {.rank = 8}}, nullptr);
        FAIL() << "not refused";
    } catch (const moeplan::kernels::UnsupportedShape& error) {
        EXPECT_NE(std::string(error.what()).find("adapter of MXFP4 weights"), std::string::npos);
    }
}

TEST(Mxfp4Cuda, refuses_widths_the_format_cannot_hold) {
    MOEPLAN_NEEDS_GPU();
    try {
        fp4::forward({.dims = {.experts = 2, .rows = 4, .in = 96, .out = 16}, .weights = {}}, nullptr);
        FAIL() << "not refused";
    } catch (const moeplan::kernels::UnsupportedShape& error) {
        EXPECT_NE(std::string(error.what()).find("in=96"), std::string::npos);
    }
}
