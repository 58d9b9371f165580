#include "kernels/grouped_linear/reference.hpp"
#include "tests/kernels/moe_support.hpp"

#include <gtest/gtest.h>

namespace gl = moeplan::kernels::grouped_linear;
namespace ref = moeplan::kernels::grouped_linear::reference;
using namespace moeplan::tests;
using moeplan::kernels::GatedActivation;

namespace {

/// Five experts with 0, 1, 3, 0 and 2 slots; rows gathered from four tokens; adapters of rank 2.
struct Fixture {
    gl::Dims dims{.experts = 5, .rows = 6, .in = 4, .out = 3};
    std::vector<int> offsets{0, 0, 1, 4, 4, 6}, gather{2, 0, 3, 2, 1, 0};
    std::vector<double> x = random_values(16, 1), weight = random_values(60, 2), bias = random_values(15, 3),
                        scale = random_values(6, 4), a, b, dy = random_values(18, 7);
    bool shared;

    explicit Fixture(bool shared_adapter)
        : a(random_values(shared_adapter ? 8 : 40, 5)), b(random_values(shared_adapter ? 6 : 30, 6)),
          shared(shared_adapter) {}
    ref::Layer<double> layer() const {
        return {.dims = dims, .offsets = offsets, .gather = gather, .weight = weight, .bias = bias,
                .row_scale = scale, .adapter = {.rank = 2, .scale = 1.5, .shared = shared, .a = a, .b = b}};
    }
    double loss() const {
        std::vector<double> y(18);
        ref::forward<double>(layer(), x, y);
        return dot(y, dy);
    }
};

} // namespace

TEST(GroupedLinearReference, computes_a_case_one_can_check_by_head) {
    const std::vector<int> offsets{0, 1, 2};
    const std::vector<float> weight{1, 2, 3, 4, /* expert 1 */ 1, 0, 0, 1}, x{1, 1, 5, 7}, bias{0, 10, 0, 0};
    std::vector<float> y(4);
    ref::forward<float>({.dims = {.experts = 2, .rows = 2, .in = 2, .out = 2},
                         .offsets = offsets, .gather = {}, .weight = weight, .bias = bias, .row_scale = {},
                         .adapter = {}},
                        x, y);
    EXPECT_EQ(y, (std::vector<float>{3, 17, 5, 7}));
}

TEST(GroupedLinearReference, low_rank_path_equals_the_materialised_delta) {
    Fixture f(false);
    std::vector<double> with(18), merged(18);
    ref::forward<double>(f.layer(), f.x, with);
    for (int e = 0; e < 5; ++e)
        for (int o = 0; o < 3; ++o)
            for (int i = 0; i < 4; ++i)
                for (int r = 0; r < 2; ++r)
                    f.weight[(e * 3 + o) * 4 + i] += 1.5 * f.b[(e * 3 + o) * 2 + r] * f.a[(e * 2 + r) * 4 + i];
    auto layer = f.layer();
    layer.adapter.rank = 0;
    ref::forward<double>(layer, f.x, merged);
    for (int i = 0; i < 18; ++i) EXPECT_NEAR(with[i], merged[i], 1e-12);
}

TEST(GroupedLinearReference, gradients_are_the_derivatives_of_the_forward_pass) {
    for (const bool shared : {false, true}) {
        Fixture f(shared);
        std::vector<double> dweight(60), dbias(15), da(f.a.size()), db(f.b.size());
        ref::weight_gradients<double>(f.layer(), f.x, f.dy, {dweight, dbias, da, db});
        const auto loss = [&] { return f.loss(); };
        EXPECT_LT(gradient_gap(f.weight, dweight, loss), 1e-7);
        EXPECT_LT(gradient_gap(f.bias, dbias, loss), 1e-7);
        EXPECT_LT(gradient_gap(f.a, da, loss), 1e-7);
        EXPECT_LT(gradient_gap(f.b, db, loss), 1e-7);
    }
}

TEST(GroupedLinearReference, input_gradient_is_the_derivative_per_slot) {
    Fixture f(false);
    f.gather.clear(); // one row of x per slot, so that dx is the derivative of x
    f.x = random_values(24, 8);
    std::vector<double> dx(24);
    ref::input_gradient<double>(f.layer(), f.dy, dx);
    EXPECT_LT(gradient_gap(f.x, dx, [&] { return f.loss(); }), 1e-7);
}

TEST(GroupedLinearReference, experts_without_tokens_get_zero_gradients) {
    Fixture f(false);
    std::vector<double> dweight(60, 99.0);
    ref::weight_gradients<double>(f.layer(), f.x, f.dy, {.dweight = dweight, .dbias = {}, .da = {}, .db = {}});
    for (int i = 0; i < 12; ++i) EXPECT_EQ(dweight[i], 0.0);        // expert 0
    for (int i = 36; i < 48; ++i) EXPECT_EQ(dweight[i], 0.0);       // expert 3
}

TEST(GatedActivation, derivatives_match_central_differences) {
    for (const auto kind : {GatedActivation::swiglu, GatedActivation::situ, GatedActivation::swiglu_clamped}) {
        // Far enough from the clamps at 7 that a step does not cross them; both sides are visited.
        std::vector<double> pre{-9.5, -1, 0, 0.3, 2, 8.5, /* linear */ 1, -8.5, 0.5, 8.5, -2, 3}, dy = random_values(6, 3);
        std::vector<double> dpre(12), y(6);
        ref::activate_gradient<double>(kind, 1, 6, pre, dy, dpre);
        EXPECT_LT(gradient_gap(pre, dpre,
                               [&] {
                                   ref::activate<double>(kind, 1, 6, pre, y);
                                   return dot(y, dy);
                               }),
                  1e-7);
    }
}

TEST(GatedActivation, situ_saturates_at_beta_times_lambda) {
    EXPECT_NEAR(moeplan::kernels::gated_activation(GatedActivation::situ, 1e3, 1e5), 100.0, 1e-9);
}
