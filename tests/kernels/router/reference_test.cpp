#include "kernels/router/reference.hpp"
#include "tests/kernels/moe_support.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace router = moeplan::kernels::router;
using namespace moeplan::tests;

namespace {

struct Routed {
    std::vector<int> experts, counts;
    std::vector<double> weights;
    double loss;
};

Routed route(const router::Dims& d, const std::vector<double>& logits, const std::vector<double>& bias = {}) {
    Routed r{std::vector<int>(d.tokens * d.top_k), std::vector<int>(d.experts),
             std::vector<double>(d.tokens * d.top_k), 0};
    r.loss = router::reference::forward<double>(d, logits, bias, {r.experts, r.weights, r.counts});
    return r;
}

} // namespace

TEST(RouterReference, ties_go_to_the_lower_expert) {
    const auto r = route({.tokens = 1, .experts = 4, .top_k = 3}, {1, 2, 2, 1});
    EXPECT_EQ(r.experts, (std::vector<int>{1, 2, 0}));
}

TEST(RouterReference, rows_of_equal_logits_choose_the_first_experts) {
    const auto r = route({.tokens = 2, .experts = 5, .top_k = 2}, std::vector<double>(10, 0.0));
    EXPECT_EQ(r.experts, (std::vector<int>{0, 1, 0, 1}));
    EXPECT_EQ(r.counts, (std::vector<int>{2, 2, 0, 0, 0}));
}

TEST(RouterReference, bias_changes_the_choice_but_not_the_weight) {
    const router::Dims d{.tokens = 1, .experts = 3, .top_k = 1, .normalise = false};
    const auto r = route(d, {0, 1, 2}, {5, 0, 0});
    EXPECT_EQ(r.experts[0], 0);
    EXPECT_DOUBLE_EQ(r.weights[0], 0.5); // sigmoid(0), not sigmoid(0) + 5
}

TEST(RouterReference, weights_sum_to_the_scale_when_normalised) {
    const auto r = route({.tokens = 1, .experts = 6, .top_k = 4, .scale = 2.5f}, random_values(6, 1));
    EXPECT_NEAR(r.weights[0] + r.weights[1] + r.weights[2] + r.weights[3], 2.5, 1e-12);
}

TEST(RouterReference, the_best_expert_of_a_group_that_is_not_kept_is_not_chosen) {
    // Group 1 holds the best single expert, group 0 the best pair.
    const router::Dims d{.tokens = 1, .experts = 4, .top_k = 2, .groups = 2, .kept_groups = 1};
    const auto r = route(d, {1.0, 1.0, 1.5, -9.0});
    EXPECT_EQ(r.experts, (std::vector<int>{0, 1}));
}

TEST(RouterReference, without_pair_ranks_the_group_of_the_best_expert_is_kept) {
    const router::Dims d{.tokens = 1, .experts = 4, .top_k = 2, .groups = 2, .kept_groups = 1, .pair_ranks = false};
    const auto r = route(d, {1.0, 1.0, 1.5, -9.0});
    EXPECT_EQ(r.experts, (std::vector<int>{2, 3}));
}

TEST(RouterReference, gradient_is_the_derivative_with_the_choice_held) {
    for (const auto score : {router::Score::sigmoid, router::Score::softmax, router::Score::sqrt_softplus})
        for (const bool normalise : {true, false}) {
            const router::Dims d{.tokens = 3, .experts = 6, .top_k = 2, .score = score, .normalise = normalise,
                                 .scale = 2.0f, .auxiliary = 0.5f};
            auto logits = random_values(18, 5);
            const auto dweights = random_values(6, 6);
            const auto r = route(d, logits);
            std::vector<double> dlogits(18);
            router::reference::backward<double>(d, logits, r.experts, r.counts, dweights, 3.0, dlogits);
            EXPECT_LT(gradient_gap(logits, dlogits,
                                   [&] {
                                       const auto now = route(d, logits);
                                       return dot(now.weights, dweights) + 3.0 * now.loss;
                                   }),
                      1e-7);
        }
}

TEST(RouterReference, auxiliary_loss_of_even_routing_is_its_weight) {
    // Each of four experts is chosen once and all have equal mean score: E * sum 1/E * 1/E = 1.
    const router::Dims d{.tokens = 4, .experts = 4, .top_k = 1, .score = router::Score::softmax, .auxiliary = 0.01f};
    std::vector<double> logits(16, 0.0);
    for (int t = 0; t < 4; ++t) logits[t * 4 + t] = 3.0;
    EXPECT_NEAR(route(d, logits).loss, 0.01, 1e-8);
}

TEST(RouterReference, bias_moves_towards_the_mean_count) {
    std::vector<double> bias(3, 0.0);
    const std::vector<int> counts{1, 2, 3};
    router::reference::update_bias<double>(counts, 0.1, bias);
    EXPECT_EQ(bias, (std::vector<double>{0.1, 0.0, -0.1}));
}

TEST(RouterReference, refuses_groups_that_cannot_hold_the_choice) {
    try {
        route({.tokens = 1, .experts = 8, .top_k = 5, .groups = 4, .kept_groups = 2}, std::vector<double>(8, 0.0));
        FAIL() << "not refused";
    } catch (const std::invalid_argument& error) {
        EXPECT_NE(std::string(error.what()).find("top_k=5"), std::string::npos);
    }
}
