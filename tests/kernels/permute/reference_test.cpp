#include "kernels/combine/reference.hpp"
#include "kernels/permute/reference.hpp"
#include "tests/kernels/moe_support.hpp"

#include <gtest/gtest.h>

namespace permute = moeplan::kernels::permute;
namespace combine = moeplan::kernels::combine;
using namespace moeplan::tests;

namespace {

struct Sorted {
    std::vector<int> offsets, token_of, row_of;
};

Sorted sorted(const permute::Dims& d, const std::vector<int>& experts, const std::vector<int>& first_copy = {}) {
    Sorted s{std::vector<int>(d.copies + 1), std::vector<int>(experts.size(), -7), std::vector<int>(experts.size())};
    permute::reference::sort(d, experts, first_copy, {s.offsets, s.token_of, s.row_of});
    return s;
}

} // namespace

TEST(Sort, orders_by_expert_then_token) {
    const auto s = sorted({.tokens = 3, .top_k = 2, .experts = 3, .copies = 3}, {2, 0, 0, 2, 2, 0});
    EXPECT_EQ(s.offsets, (std::vector<int>{0, 3, 3, 6}));
    EXPECT_EQ(s.token_of, (std::vector<int>{0, 1, 2, 0, 1, 2}));
    EXPECT_EQ(s.row_of, (std::vector<int>{3, 0, 1, 4, 5, 2}));
}

TEST(Sort, drops_the_later_tokens_beyond_capacity) {
    const auto s = sorted({.tokens = 3, .top_k = 1, .experts = 2, .copies = 2, .capacity = 2}, {1, 1, 1});
    EXPECT_EQ(s.offsets, (std::vector<int>{0, 0, 2}));
    EXPECT_EQ(s.row_of, (std::vector<int>{0, 1, -1}));
    EXPECT_EQ(s.token_of[2], -7); // not written
}

TEST(Sort, spreads_tokens_over_the_copies_of_an_expert) {
    const auto s = sorted({.tokens = 4, .top_k = 1, .experts = 2, .copies = 3}, {0, 0, 0, 1}, {0, 2, 3});
    EXPECT_EQ(s.offsets, (std::vector<int>{0, 2, 3, 4})); // tokens 0 and 2; token 1; token 3
    EXPECT_EQ(s.row_of, (std::vector<int>{0, 2, 1, 3}));
}

TEST(Permute, backward_is_the_derivative) {
    const permute::Dims d{.tokens = 3, .top_k = 2, .experts = 4, .copies = 4, .capacity = 2};
    const auto s = sorted(d, {1, 3, 1, 3, 1, 3});
    auto x = random_values(15, 1);
    const int rows = s.offsets[4];
    EXPECT_EQ(rows, 4);
    const auto dy = random_values(rows * 5, 2);
    std::vector<double> dx(15);
    permute::reference::backward<double>(d, 5, s.row_of, dy, dx);
    EXPECT_LT(gradient_gap(x, dx,
                           [&] {
                               std::vector<double> y(rows * 5);
                               permute::reference::forward<double>(d, 5, s.offsets, s.token_of, x, y);
                               return dot(y, dy);
                           }),
              1e-8);
}

TEST(Combine, backward_is_the_derivative_and_dropped_choices_get_nothing) {
    const permute::Dims d{.tokens = 3, .top_k = 2, .experts = 4, .copies = 4, .capacity = 2};
    const auto s = sorted(d, {1, 3, 1, 3, 1, 3});
    auto y = random_values(4 * 5, 1), weights = random_values(6, 2);
    const auto dout = random_values(15, 3);
    const auto loss = [&] {
        std::vector<double> out(15);
        combine::reference::forward<double>(d, 5, s.row_of, weights, y, out);
        return dot(out, dout);
    };
    std::vector<double> dy(20), dweights(6);
    combine::reference::backward<double>(d, 5, s.row_of, weights, y, dout, dy, dweights);
    EXPECT_LT(gradient_gap(y, dy, loss), 1e-8);
    EXPECT_LT(gradient_gap(weights, dweights, loss), 1e-8);
    EXPECT_EQ(dweights[4], 0.0);
    EXPECT_EQ(dweights[5], 0.0);
}
