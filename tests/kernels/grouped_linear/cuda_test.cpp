#include "kernels/grouped_linear/cuda.hpp"
#include "kernels/grouped_linear/reference.hpp"
#include "tests/kernels/moe_cuda_support.hpp"

#include <numeric>

namespace gl = moeplan::kernels::grouped_linear;
namespace ref = moeplan::kernels::grouped_linear::reference;
using namespace moeplan::tests;
using moeplan::kernels::GatedActivation;

namespace {

struct Data {
    gl::Dims dims;
    std::vector<int> offsets{0}, gather;
    std::vector<double> x, dy, weight, bias, scale;

    Data(std::vector<int> counts, int in, int out) {
        for (int n : counts) offsets.push_back(offsets.back() + n);
        dims = {.experts = static_cast<int>(counts.size()), .rows = offsets.back(), .in = in, .out = out};
        gather.resize(dims.rows);
        for (int i = 0; i < dims.rows; ++i) gather[i] = (i * 37 + 5) % dims.rows;
        x = bf16_values(static_cast<std::size_t>(dims.rows) * in, 1);
        dy = bf16_values(static_cast<std::size_t>(dims.rows) * out, 2);
        weight = bf16_values(static_cast<std::size_t>(dims.experts) * out * in, 3, 1.0 / std::sqrt(in));
        bias = bf16_values(static_cast<std::size_t>(dims.experts) * out, 4);
        scale = bf16_values(dims.rows, 5);
    }
    ref::Layer<double> layer() const {
        return {.dims = dims, .offsets = offsets, .gather = gather, .weight = weight, .bias = bias,
                .row_scale = scale, .adapter = {}};
    }
};

void compare(const Data& data, gl::Clusters clusters, bool portable = false) {
    const auto offsets = DeviceBuffer::of(data.offsets), gather = DeviceBuffer::of(data.gather),
               scale = upload_as<float>(data.scale);
    const auto x = upload_bf16(data.x), dy = upload_bf16(data.dy), weight = upload_bf16(data.weight),
               bias = upload_bf16(data.bias);
    DeviceBuffer y = poisoned(data.dy.size() * 2), dx = poisoned(data.x.size() * 2);
    gl::forward({.dims = data.dims, .x = x.get<bf16>(), .x_rows = data.dims.rows, .gather = gather.get<int>(),
                 .weight = weight.get<bf16>(), .bias = bias.get<bf16>(), .offsets = offsets.get<int>(),
                 .row_scale = scale.get<float>(), .y = y.get<bf16>(), .clusters = clusters, .portable = portable},
                nullptr);
    gl::input_gradient({.dims = data.dims, .dy = dy.get<bf16>(), .dy_rows = data.dims.rows,
                        .gather = gather.get<int>(), .weight = weight.get<bf16>(), .offsets = offsets.get<int>(),
                        .row_scale = scale.get<float>(), .dx = dx.get<bf16>(), .clusters = clusters, .portable = portable},
                       nullptr);
    std::vector<double> want_y(data.dy.size()), want_dx(data.x.size());
    ref::forward<double>(data.layer(), data.x, want_y);
    ref::input_gradient<double>(data.layer(), data.dy, want_dx);
    EXPECT_LT(relative_error(download_bf16(y), want_y), 3e-3);
    EXPECT_LT(relative_error(download_bf16(dx), want_dx), 3e-3);
}

/// Plain rows, dealt out by `next` or beforehand.
struct Products {
    const Data& data;
    DeviceBuffer offsets = DeviceBuffer::of(data.offsets), x = upload_bf16(data.x), dy = upload_bf16(data.dy), weight = upload_bf16(data.weight);

    std::vector<std::uint16_t> run(gl::Clusters clusters, int* next, cudaStream_t stream = nullptr) const {
        DeviceBuffer y = poisoned(data.dy.size() * 2), dx = poisoned(data.x.size() * 2);
        moeplan::kernels::check(cudaDeviceSynchronize(), "poison");
        gl::forward({.dims = data.dims, .x = x.get<bf16>(), .x_rows = data.dims.rows, .weight = weight.get<bf16>(),
                     .offsets = offsets.get<int>(), .y = y.get<bf16>(), .clusters = clusters, .next = next},
                    stream);
        gl::input_gradient({.dims = data.dims, .dy = dy.get<bf16>(), .dy_rows = data.dims.rows, .weight = weight.get<bf16>(),
                            .offsets = offsets.get<int>(), .dx = dx.get<bf16>(), .clusters = clusters, .next = next},
                           stream);
        moeplan::kernels::check(cudaStreamSynchronize(stream), "products");
        auto both = y.download<std::uint16_t>();
        const auto back = dx.download<std::uint16_t>();
        both.insert(both.end(), back.begin(), back.end());
        return both;
    }
};

} // namespace

TEST(GroupedLinearCuda, equals_the_reference_for_ragged_experts) {
    MOEPLAN_NEEDS_GPU();
    for (const auto clusters : {gl::Clusters::single, gl::Clusters::pairs}) {
        compare({{0, 1, 7, 127, 129, 0, 40}, 136, 264}, clusters);
        compare({{0, 0, 513, 0}, 64, 256}, clusters); // all tokens on one expert
        compare({{3, 2}, 2880, 96}, clusters);
    }
}

TEST(GroupedLinearCuda, the_portable_form_equals_the_reference_for_ragged_experts) {
    MOEPLAN_NEEDS_GPU();
    compare({{0, 1, 7, 127, 128, 129, 0, 40}, 136, 264}, gl::Clusters::automatic, true);
    compare({{0, 0, 513, 0}, 64, 256}, gl::Clusters::automatic, true); // all tokens on one expert
    compare({{3, 2}, 2880, 96}, gl::Clusters::automatic, true);
    compare({{300}, 8, 8}, gl::Clusters::automatic, true); // far below a tile either way
}

TEST(GroupedLinearCuda, a_tile_has_the_same_bits_whoever_computes_it_and_the_counter_ends_at_zero) {
    MOEPLAN_NEEDS_GPU();
    const std::vector<std::vector<int>> loads{{0, 1, 7, 127, 129, 0, 40}, {0, 0, 513, 0}, {0, 0, 0}, std::vector<int>(200, 3), {700, 1300}};
    const auto next = DeviceBuffer::of(std::vector<int>{0});
    for (const auto& load : loads)
        for (const auto& [in, out] : {std::pair{136, 264}, std::pair{64, 1536}, std::pair{8, 8}, std::pair{1024, 320}}) {
            const Data data(load, in, out);
            const Products products{data};
            for (const auto clusters : {gl::Clusters::single, gl::Clusters::pairs}) {
                const auto want = products.run(clusters, nullptr);
                for (int replay = 0; replay < 5; ++replay) ASSERT_EQ(products.run(clusters, next.get<int>()), want);
                ASSERT_EQ(next.download<int>()[0], 0);
            }
        }
}

TEST(GroupedLinearCuda, dealt_out_gathered_rows_have_the_same_bits) {
    MOEPLAN_NEEDS_GPU();
    const Data data({5, 0, 130, 300}, 200, 2 * 264);
    const auto offsets = DeviceBuffer::of(data.offsets), gather = DeviceBuffer::of(data.gather), next = DeviceBuffer::of(std::vector<int>{0});
    const auto x = upload_bf16(data.x), weight = upload_bf16(data.weight);
    for (const auto clusters : {gl::Clusters::single, gl::Clusters::pairs}) {
        std::vector<std::uint16_t> want;
        for (int* counter : {static_cast<int*>(nullptr), next.get<int>(), next.get<int>()}) {
            DeviceBuffer y = poisoned(data.dy.size());
            gl::gated_forward({.dims = data.dims, .x = x.get<bf16>(), .x_rows = data.dims.rows, .gather = gather.get<int>(),
                               .weight = weight.get<bf16>(), .offsets = offsets.get<int>(), .y = y.get<bf16>(), .clusters = clusters, .next = counter},
                              nullptr);
            const auto got = y.download<std::uint16_t>();
            if (counter == nullptr) want = got;
            EXPECT_EQ(got, want);
        }
        EXPECT_EQ(next.download<int>()[0], 0);
    }
}

TEST(GroupedLinearCuda, replays_are_bit_equal) {
    MOEPLAN_NEEDS_GPU();
    const Data data({100, 0, 300, 5}, 256, 512);
    const auto offsets = DeviceBuffer::of(data.offsets);
    const auto x = upload_bf16(data.x), weight = upload_bf16(data.weight);
    std::vector<std::uint16_t> first;
    for (int replay = 0; replay < 50; ++replay) {
        DeviceBuffer y = poisoned(data.dy.size() * 2);
        gl::forward({.dims = data.dims, .x = x.get<bf16>(), .x_rows = data.dims.rows, .weight = weight.get<bf16>(),
                     .offsets = offsets.get<int>(), .y = y.get<bf16>()},
                    nullptr);
        const auto now = y.download<std::uint16_t>();
        if (replay == 0) first = now;
        ASSERT_EQ(now, first);
    }
}

TEST(GroupedLinearCuda, a_captured_graph_follows_new_counts) {
    MOEPLAN_NEEDS_GPU();
    Data data({64, 0}, 64, 64);
    DeviceBuffer offsets = DeviceBuffer::of(data.offsets);
    const auto x = upload_bf16(data.x), weight = upload_bf16(data.weight);
    DeviceBuffer y = poisoned(data.dy.size() * 2);
    const auto next = DeviceBuffer::of(std::vector<int>{0});
    moeplan::kernels::Stream stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    moeplan::kernels::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin capture");
    gl::forward({.dims = data.dims, .x = x.get<bf16>(), .x_rows = 64, .weight = weight.get<bf16>(),
                 .offsets = offsets.get<int>(), .y = y.get<bf16>(), .next = next.get<int>()},
                stream.get());
    moeplan::kernels::check(cudaStreamEndCapture(stream.get(), &graph), "end capture");
    moeplan::kernels::check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    data.gather.clear();
    data.bias.clear();
    data.scale.clear();
    for (const int split : {64, 10, 0}) {
        data.offsets = {0, split, 64};
        offsets.upload(std::span<const int>(data.offsets));
        moeplan::kernels::check(cudaGraphLaunch(executable, stream.get()), "launch");
        stream.synchronize();
        std::vector<double> want(data.dy.size());
        ref::forward<double>(data.layer(), data.x, want);
        EXPECT_LT(relative_error(download_bf16(y), want), 3e-3) << split;
    }
    (void)cudaGraphExecDestroy(executable);
    (void)cudaGraphDestroy(graph);
}

TEST(GroupedLinearCuda, gated_layer_keeps_what_backward_needs) {
    MOEPLAN_NEEDS_GPU();
    for (const auto kind : {GatedActivation::swiglu, GatedActivation::situ, GatedActivation::swiglu_clamped}) {
        Data data({5, 0, 130}, 80, 2 * 88);
        const auto offsets = DeviceBuffer::of(data.offsets), gather = DeviceBuffer::of(data.gather);
        const auto x = upload_bf16(data.x), weight = upload_bf16(data.weight), bias = upload_bf16(data.bias);
        DeviceBuffer y = poisoned(data.dy.size()), pre = poisoned(data.dy.size() * 2);
        gl::gated_forward({.dims = data.dims, .x = x.get<bf16>(), .x_rows = data.dims.rows,
                           .gather = gather.get<int>(), .weight = weight.get<bf16>(), .bias = bias.get<bf16>(),
                           .offsets = offsets.get<int>(), .activation = kind, .y = y.get<bf16>(),
                           .pre = pre.get<bf16>()},
                          nullptr);
        data.scale.clear();
        std::vector<double> want_pre(data.dy.size()), want(data.dy.size() / 2);
        ref::forward<double>(data.layer(), data.x, want_pre);
        EXPECT_LT(relative_error(download_bf16(pre), want_pre), 3e-3);
        ref::activate<double>(kind, data.dims.rows, 88, download_bf16(pre), want);
        EXPECT_LT(relative_error(download_bf16(y), want), 3e-3);
    }
}

TEST(GroupedLinearCuda, refuses_rows_that_are_not_16_bytes) {
    MOEPLAN_NEEDS_GPU();
    try {
        gl::forward({.dims = {.experts = 2, .rows = 4, .in = 12, .out = 16}}, nullptr);
        FAIL() << "not refused";
    } catch (const moeplan::kernels::UnsupportedShape& error) {
        EXPECT_NE(std::string(error.what()).find("in=12"), std::string::npos);
        EXPECT_NE(std::string(error.what()).find("multiple of 8"), std::string::npos);
    }
}
