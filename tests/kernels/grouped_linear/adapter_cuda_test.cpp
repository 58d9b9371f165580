#include "kernels/grouped_linear/cuda.hpp"
#include "kernels/grouped_linear/reference.hpp"
#include "tests/kernels/moe_cuda_support.hpp"

namespace gl = moeplan::kernels::grouped_linear;
namespace ref = moeplan::kernels::grouped_linear::reference;
using namespace moeplan::tests;

namespace {

constexpr double lambda = 2.0;

/// Forward, dX, dA, dB of an adapted layer by the kernels, against the fp64 reference.
void compare(const std::vector<int>& counts, int in, int out, int rank, bool shared, bool portable = false) {
    std::vector<int> offsets{0};
    for (int n : counts) offsets.push_back(offsets.back() + n);
    const int experts = static_cast<int>(counts.size()), rows = offsets.back(), factors = shared ? 1 : experts;
    const gl::Dims dims{.experts = experts, .rows = rows, .in = in, .out = out};
    const auto x = bf16_values(static_cast<std::size_t>(rows) * in, 1),
               dy = bf16_values(static_cast<std::size_t>(rows) * out, 2),
               weight = bf16_values(static_cast<std::size_t>(experts) * out * in, 3, 1 / std::sqrt(in)),
               a = bf16_values(static_cast<std::size_t>(factors) * rank * in, 4, 1 / std::sqrt(in)),
               b = bf16_values(static_cast<std::size_t>(factors) * out * rank, 5, 1 / std::sqrt(rank));
    const auto dx = upload_bf16(x), ddy = upload_bf16(dy), dw = upload_bf16(weight), da = upload_bf16(a),
               db = upload_bf16(b);
    const auto doff = DeviceBuffer::of(offsets), shared_offsets = DeviceBuffer::of(std::vector<int>{0, rows});
    const int* factor_offsets = shared ? shared_offsets.get<int>() : doff.get<int>();
    DeviceBuffer low = poisoned(static_cast<std::size_t>(rows) * rank * 2), plain = poisoned(low.bytes()), back = poisoned(low.bytes()),
                 y = poisoned(dy.size() * 2), gx = poisoned(x.size() * 2), ga = poisoned(a.size() * 4),
                 gb = poisoned(b.size() * 4), gw = poisoned(weight.size() * 4);
    if (portable) { // no form of its own there
        const gl::Dims down{.experts = factors, .rows = rows, .in = in, .out = rank};
        gl::forward({.dims = down, .x = dx.get<bf16>(), .x_rows = rows, .weight = da.get<bf16>(), .offsets = factor_offsets, .y = plain.get<bf16>(), .portable = true}, nullptr);
        gl::forward({.dims = down, .x = dx.get<bf16>(), .x_rows = rows, .weight = da.get<bf16>(), .offsets = factor_offsets, .y = low.get<bf16>(), .alpha = lambda, .portable = true}, nullptr);
        gl::input_gradient({.dims = {.experts = factors, .rows = rows, .in = rank, .out = out}, .dy = ddy.get<bf16>(), .dy_rows = rows, .weight = db.get<bf16>(),
                            .offsets = factor_offsets, .dx = back.get<bf16>(), .alpha = lambda, .portable = true},
                           nullptr);
    } else {
        gl::low_rows({.factors = factors, .rows = rows, .width = in, .rank = rank, .from = dx.get<bf16>(), .factor = da.get<bf16>(),
                      .offsets = factor_offsets, .low = plain.get<bf16>(), .scaled = low.get<bf16>(), .scale = lambda},
                     nullptr);
        gl::low_rows({.factors = factors, .rows = rows, .width = out, .rank = rank, .gradient = true, .from = ddy.get<bf16>(),
                      .factor = db.get<bf16>(), .offsets = factor_offsets, .low = back.get<bf16>(), .alpha = lambda},
                     nullptr);
    }
    gl::forward({.dims = dims, .x = dx.get<bf16>(), .x_rows = rows, .weight = dw.get<bf16>(),
                 .offsets = doff.get<int>(), .y = y.get<bf16>(),
                 .adapter = {.rank = rank, .shared = shared, .low = low.get<bf16>(), .factor = db.get<bf16>()}, .portable = portable},
                nullptr);
    gl::input_gradient({.dims = dims, .dy = ddy.get<bf16>(), .dy_rows = rows, .weight = dw.get<bf16>(),
                        .offsets = doff.get<int>(), .dx = gx.get<bf16>(),
                        .adapter = {.rank = rank, .shared = shared, .low = back.get<bf16>(), .factor = da.get<bf16>()}, .portable = portable},
                       nullptr);
    gl::slot_product({.experts = factors, .rows = rows, .a_width = in, .b_width = rank, .transposed = true,
                      .a = dx.get<bf16>(), .b = back.get<bf16>(), .offsets = factor_offsets, .out = ga.get<float>(), .portable = portable},
                     nullptr);
    gl::slot_product({.experts = factors, .rows = rows, .a_width = out, .b_width = rank, .a = ddy.get<bf16>(),
                      .b = low.get<bf16>(), .offsets = factor_offsets, .out = gb.get<float>(), .portable = portable},
                     nullptr);
    gl::slot_product({.experts = experts, .rows = rows, .a_width = out, .b_width = in, .a = ddy.get<bf16>(),
                      .b = dx.get<bf16>(), .offsets = doff.get<int>(), .out = gw.get<float>(), .portable = portable},
                     nullptr);

    DeviceBuffer narrow_a = poisoned(a.size() * 2), narrow_b = poisoned(b.size() * 2), narrow_w = poisoned(weight.size() * 2);
    gl::slot_product({.experts = factors, .rows = rows, .a_width = in, .b_width = rank, .transposed = true, .a = dx.get<bf16>(),
                      .b = back.get<bf16>(), .offsets = factor_offsets, .narrow = narrow_a.get<bf16>(), .portable = portable}, nullptr);
    gl::slot_product({.experts = factors, .rows = rows, .a_width = out, .b_width = rank, .a = ddy.get<bf16>(), .b = plain.get<bf16>(),
                      .offsets = factor_offsets, .narrow = narrow_b.get<bf16>(), .scale = lambda, .portable = portable}, nullptr);
    gl::slot_product({.experts = experts, .rows = rows, .a_width = out, .b_width = in, .a = ddy.get<bf16>(), .b = dx.get<bf16>(),
                      .offsets = doff.get<int>(), .narrow = narrow_w.get<bf16>(), .portable = portable}, nullptr);

    if (!portable) { // dealt out as blocks come: the same bits
        const auto next = DeviceBuffer::of(std::vector<int>{0});
        int* const counter = next.get<int>();
        DeviceBuffer again = poisoned(std::max({narrow_a.bytes(), narrow_b.bytes(), low.bytes()}));
        const auto expect_equal = [](const DeviceBuffer& got, const DeviceBuffer& want) {
            EXPECT_EQ(got.download<std::uint16_t>(want.bytes() / 2), want.download<std::uint16_t>());
        };
        gl::slot_product({.experts = factors, .rows = rows, .a_width = in, .b_width = rank, .transposed = true, .a = dx.get<bf16>(),
                          .b = back.get<bf16>(), .offsets = factor_offsets, .narrow = again.get<bf16>(), .next = counter}, nullptr);
        expect_equal(again, narrow_a);
        gl::slot_product({.experts = factors, .rows = rows, .a_width = out, .b_width = rank, .a = ddy.get<bf16>(), .b = plain.get<bf16>(),
                          .offsets = factor_offsets, .narrow = again.get<bf16>(), .scale = lambda, .next = counter}, nullptr);
        expect_equal(again, narrow_b);
        gl::low_rows({.factors = factors, .rows = rows, .width = in, .rank = rank, .from = dx.get<bf16>(), .factor = da.get<bf16>(),
                      .offsets = factor_offsets, .low = again.get<bf16>(), .next = counter}, nullptr);
        expect_equal(again, plain);
        EXPECT_EQ(next.download<int>()[0], 0);
    }

    const ref::Layer<double> layer{.dims = dims, .offsets = offsets, .gather = {}, .weight = weight, .bias = {},
                                   .row_scale = {},
                                   .adapter = {.rank = rank, .scale = lambda, .shared = shared, .a = a, .b = b}};
    std::vector<double> want_y(dy.size()), want_x(x.size()), want_a(a.size()), want_b(b.size()), want_w(weight.size());
    ref::forward<double>(layer, x, want_y);
    ref::input_gradient<double>(layer, dy, want_x);
    ref::weight_gradients<double>(layer, x, dy, {.dweight = want_w, .dbias = {}, .da = want_a, .db = want_b});
    const auto expect_low = [&](const DeviceBuffer& got, const std::vector<double>& from, int width, double scale, const auto& factor) {
        std::vector<double> want(static_cast<std::size_t>(rows) * rank);
        for (int e = 0, row = 0; e < experts; ++e)
            for (; row < offsets[e + 1]; ++row)
                for (int r = 0; r < rank; ++r)
                    for (int k = 0; k < width; ++k)
                        want[static_cast<std::size_t>(row) * rank + r] += scale * from[static_cast<std::size_t>(row) * width + k] * factor(shared ? 0 : e, r, k);
        EXPECT_LT(relative_error(download_bf16(got), want), 4e-3);
    };
    const auto a_at = [&](std::size_t e, int r, int k) { return a[(e * rank + r) * in + k]; };
    expect_low(plain, x, in, 1, a_at);
    expect_low(low, x, in, lambda, a_at);
    expect_low(back, dy, out, lambda, [&](std::size_t e, int r, int k) { return b[(e * out + k) * rank + r]; });
    const auto got_a = ga.download<float>(), got_b = gb.download<float>(), got_w = gw.download<float>();
    EXPECT_LT(relative_error(download_bf16(y), want_y), 4e-3);
    EXPECT_LT(relative_error(download_bf16(gx), want_x), 4e-3);
    EXPECT_LT(relative_error({got_a.begin(), got_a.end()}, want_a), 4e-3); // low-rank rows are rounded to bf16
    EXPECT_LT(relative_error({got_b.begin(), got_b.end()}, want_b), 4e-3);
    EXPECT_LT(relative_error({got_w.begin(), got_w.end()}, want_w), 1e-5);
    EXPECT_LT(relative_error(download_bf16(narrow_a), want_a), 5e-3);
    EXPECT_LT(relative_error(download_bf16(narrow_b), want_b), 5e-3);
    EXPECT_LT(relative_error(download_bf16(narrow_w), want_w), 3e-3);
    for (int e = 0; e < experts; ++e) // experts without tokens: exactly zero
        for (std::size_t i = 0; counts[e] == 0 && i < static_cast<std::size_t>(out) * in; ++i)
            ASSERT_EQ(got_w[static_cast<std::size_t>(e) * out * in + i], 0.0f);
}

} // namespace

TEST(AdapterCuda, forward_and_all_gradients_equal_the_reference) {
    MOEPLAN_NEEDS_GPU();
    for (const bool portable : {false, true}) {
        compare({0, 1, 7, 127, 129, 0, 40}, 136, 264, 16, false, portable);
        compare({70, 3}, 320, 64, 64, false, portable);
        compare({5, 0, 300}, 96, 520, 32, true, portable);
        compare({64, 65}, 256, 256, 128, false, portable); // more than one stage of rank
        compare({130, 0, 3}, 200, 72, 80, false, portable); // a stage of rank and a quarter
        compare({40, 65}, 64, 136, 200, true, portable);    // more rank than one tile of the low-rank rows
        compare({0, 9}, 64, 128, 8, false, portable);
        compare({300, 0, 200, 70, 513}, 776, 520, 24, false, portable);
    }
}

TEST(AdapterCuda, rows_past_the_counts_do_not_leak_into_gradients) {
    MOEPLAN_NEEDS_GPU();
    // The buffers hold 64 more rows than the counts, all NaN.
    const int rows = 10, bound = 74, in = 64, rank = 16;
    const auto x = bf16_values(rows * in, 1), low = bf16_values(rows * rank, 2);
    DeviceBuffer dx = poisoned(bound * in * 2), dlow = poisoned(bound * rank * 2), out = poisoned(in * rank * 4);
    const auto fill = [](DeviceBuffer& to, const std::vector<double>& values) {
        std::vector<bf16> narrow(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) narrow[i] = __float2bfloat16(static_cast<float>(values[i]));
        to.upload(std::span<const bf16>(narrow));
    };
    fill(dx, x);
    fill(dlow, low);
    const auto offsets = DeviceBuffer::of(std::vector<int>{0, rows});
    gl::slot_product({.experts = 1, .rows = bound, .a_width = in, .b_width = rank, .a = dx.get<bf16>(),
                      .b = dlow.get<bf16>(), .offsets = offsets.get<int>(), .out = out.get<float>()},
                     nullptr);
    const auto got = out.download<float>();
    for (int i = 0; i < in; ++i)
        for (int j = 0; j < rank; ++j) {
            double want = 0;
            for (int r = 0; r < rows; ++r) want += x[r * in + i] * low[r * rank + j];
            ASSERT_NEAR(got[i * rank + j], want, 1e-4);
        }
}
