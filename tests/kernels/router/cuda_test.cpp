#include "kernels/router/cuda.hpp"
#include "kernels/router/reference.hpp"
#include "tests/kernels/moe_cuda_support.hpp"

namespace router = moeplan::kernels::router;
using namespace moeplan::tests;

namespace {

struct Result {
    std::vector<int> experts, counts;
    std::vector<float> weights, dlogits;
    float loss;
};

Result on_gpu(const router::Dims& d, const std::vector<float>& logits, const std::vector<float>& bias,
              const std::vector<float>& dweights) {
    const std::size_t choices = static_cast<std::size_t>(d.tokens) * d.top_k;
    const auto l = DeviceBuffer::of(logits), b = DeviceBuffer::of(bias), dw = DeviceBuffer::of(dweights);
    DeviceBuffer experts = poisoned(choices * 4), weights = poisoned(choices * 4), counts = poisoned(d.experts * 4),
                 loss = poisoned(4), workspace = poisoned(router::workspace_bytes(d)),
                 dlogits = poisoned(logits.size() * 4);
    router::forward({.dims = d, .logits = l.get<float>(), .bias = b.get<float>(), .experts = experts.get<int>(),
                     .weights = weights.get<float>(), .counts = counts.get<int>(), .loss = loss.get<float>(),
                     .workspace = workspace.get()},
                    nullptr);
    router::backward({.dims = d, .logits = l.get<float>(), .experts = experts.get<int>(), .counts = counts.get<int>(),
                      .dweights = dw.get<float>(), .dloss = nullptr, .dlogits = dlogits.get<float>()},
                     nullptr);
    return {experts.download<int>(), counts.download<int>(), weights.download<float>(), dlogits.download<float>(),
            loss.download<float>()[0]};
}

void compare(const router::Dims& d, unsigned seed) {
    // Distinct multiples of 1/64 per token, so that rounding cannot swap two choices.
    std::mt19937 engine(seed);
    std::vector<float> logits(static_cast<std::size_t>(d.tokens) * d.experts), bias(d.experts, 0.0f),
        dweights(static_cast<std::size_t>(d.tokens) * d.top_k);
    for (int t = 0; t < d.tokens; ++t) {
        std::vector<float> row(d.experts);
        for (int e = 0; e < d.experts; ++e) row[e] = static_cast<float>(e - d.experts / 2) / 64.0f;
        std::shuffle(row.begin(), row.end(), engine);
        std::copy(row.begin(), row.end(), logits.begin() + static_cast<std::ptrdiff_t>(t) * d.experts);
    }
    std::normal_distribution<float> normal;
    for (float& v : dweights) v = normal(engine);
    const Result got = on_gpu(d, logits, bias, dweights);
    const std::vector<double> l(logits.begin(), logits.end()), dw(dweights.begin(), dweights.end());
    std::vector<int> experts(dw.size()), counts(d.experts);
    std::vector<double> weights(dw.size()), dlogits(l.size());
    const double loss = router::reference::forward<double>(d, l, {}, {experts, weights, counts});
    router::reference::backward<double>(d, l, experts, counts, dw, 1.0, dlogits);
    EXPECT_EQ(got.experts, experts);
    EXPECT_EQ(got.counts, counts);
    EXPECT_LT(relative_error({got.weights.begin(), got.weights.end()}, weights), 1e-5);
    // 1 - s and dw - mean cancel in fp32 where scores saturate.
    EXPECT_LT(relative_error({got.dlogits.begin(), got.dlogits.end()}, dlogits), 1e-3);
    if (d.auxiliary != 0) {
        EXPECT_NEAR(got.loss, loss, 1e-5 * loss);
    }
}

} // namespace

TEST(RouterCuda, equals_the_reference_over_widths_scores_and_groups) {
    MOEPLAN_NEEDS_GPU();
    for (const auto score : {router::Score::sigmoid, router::Score::softmax, router::Score::sqrt_softplus})
        for (const int experts : {5, 32, 64, 100, 256, 512, 896, 1024})
            for (const float auxiliary : {0.0f, 0.01f}) {
                const router::Dims d{.tokens = 157, .experts = experts, .top_k = std::min(8, experts), .score = score,
                                     .normalise = auxiliary == 0.0f, .scale = 2.5f, .auxiliary = auxiliary};
                compare(d, experts);
                if (experts % 8 == 0) {
                    router::Dims grouped = d;
                    grouped.groups = 8;
                    grouped.kept_groups = 4;
                    grouped.pair_ranks = auxiliary == 0.0f;
                    compare(grouped, experts + 1);
                }
            }
    compare({.tokens = 1, .experts = 1024, .top_k = 32}, 9);
    compare({.tokens = 9001, .experts = 256, .top_k = 8, .auxiliary = 0.1f}, 10);
}

TEST(RouterCuda, equal_scores_choose_the_lowest_experts_on_every_replay) {
    MOEPLAN_NEEDS_GPU();
    const router::Dims d{.tokens = 500, .experts = 256, .top_k = 8};
    const std::vector<float> logits(500 * 256, 0.25f), bias(256, 0.0f), dweights(4000, 1.0f);
    for (int replay = 0; replay < 20; ++replay) {
        const Result got = on_gpu(d, logits, bias, dweights);
        for (int i = 0; i < 4000; ++i) ASSERT_EQ(got.experts[i], i % 8);
    }
}

TEST(RouterCuda, refuses_with_the_numbers) {
    MOEPLAN_NEEDS_GPU();
    try {
        router::forward({.dims = {.tokens = 4, .experts = 2000, .top_k = 2}}, nullptr);
        FAIL() << "not refused";
    } catch (const moeplan::kernels::UnsupportedShape& error) {
        EXPECT_NE(std::string(error.what()).find("experts=2000"), std::string::npos);
    }
}
