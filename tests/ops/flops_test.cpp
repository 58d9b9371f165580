/// Flop counts against closed forms and published figures.

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/catalogue.hpp"

namespace moeplan {
namespace {

constexpr Wants frozen{true, false}, trained{true, true};

double forward(const Op& op) { return flops(op, Pass::forward).value; }
double both(const Op& op, Wants wants) { return forward(op) + flops(op, Pass::backward, wants).value; }

op::Linear linear(std::int64_t t, std::int64_t in, std::int64_t out) { return {.tokens = t, .in = in, .out = out, .training = Training::full}; }

TEST(DenseLayer, CostsTheClosedFormOf72thhPlusAttention) {
  // Narayanan et al. 2021: 72 t h^2 (1 + s / (6 h)) for forward and backward of one GPT layer, all s keys counted for each query.
  const std::int64_t t = 4096, s = 2048, h = 1024, heads = 16;
  const double products = both(linear(t, h, 3 * h), trained) + both(linear(t, h, h), trained) + both(linear(t, h, 4 * h), trained) + both(linear(t, 4 * h, h), trained);
  op::Attention attention{.tokens = t, .sequence_length = s, .heads = heads, .kv_heads = heads, .d_qk = h / heads, .d_v = h / heads, .causal = false};
  const double closed = 72.0 * t * h * h * (1 + static_cast<double>(s) / (6.0 * h));
  EXPECT_DOUBLE_EQ(products + 3 * forward(attention), closed);
  // Flash attention computes the logits again in the backward: 2.5 x its forward where the closed form has 2 x.
  EXPECT_DOUBLE_EQ(both(attention, trained), 3.5 * forward(attention));
  const double all_keys = forward(attention);
  attention.causal = true;
  EXPECT_DOUBLE_EQ(forward(attention), all_keys / 2) << "causal is counted half";
}

/// One token of Qwen3-30B-A3B's training step at sequence 8192, per the published convention: three times the forward products, all keys
/// counted, a norm weight as one multiply-add a pass, embedding free, head counted.
double qwen3_30b_per_token(std::int64_t experts_counted) {
  const std::int64_t s = 8192, h = 2048, heads = 32, kv = 4, d = 128, inner = 768;
  std::vector<Op> layer{op::RmsNorm{.tokens = 1, .hidden = h, .training = Training::full},
                        linear(1, h, heads * d), linear(1, h, kv * d), linear(1, h, kv * d),
                        op::RmsNorm{.tokens = heads, .hidden = d, .training = Training::full}, op::RmsNorm{.tokens = kv, .hidden = d, .training = Training::full},
                        op::Attention{.tokens = 1, .sequence_length = s, .heads = heads, .kv_heads = kv, .d_qk = d, .d_v = d, .causal = false},
                        linear(1, heads * d, h),
                        op::RmsNorm{.tokens = 1, .hidden = h, .training = Training::full},
                        op::Router{.tokens = 1, .hidden = h, .experts = 128, .top_k = 8, .training = Training::full},
                        op::GroupedLinear{.rows = experts_counted, .experts = 128, .in = h, .out = 2 * inner, .training = Training::full},
                        op::GroupedLinear{.rows = experts_counted, .experts = 128, .in = inner, .out = h, .training = Training::full}};
  const std::vector<Op> ends{op::Embedding{.tokens = 1, .vocabulary = 151936, .hidden = h, .training = Training::full},
                             op::RmsNorm{.tokens = 1, .hidden = h, .training = Training::full}, linear(1, h, 151936)};
  const auto counted = [](const Op& op) {
    if (kind(op) != "rms_norm") return 3 * forward(op);
    double weights = 0;
    for (const Operand& o : operands(op))
      if (o.role == Role::weight) weights += static_cast<double>(o.shape.elements());
    return 6 * weights;
  };
  double sum = 0;
  for (const Op& op : layer) sum += 48 * counted(op);
  for (const Op& op : ends) sum += counted(op);
  return sum;
}

TEST(MoeModel, CountsTheChosenExpertsOnly) {
  EXPECT_DOUBLE_EQ(qwen3_30b_per_token(8), 37578559488.0);
  EXPECT_GT(qwen3_30b_per_token(128) / qwen3_30b_per_token(8), 5) << "what counting all experts would say";
}

TEST(MoeModel, TrainedProductsCostThreeTimesTheirForwardAndFrozenOnesTwice) {
  const Op full = op::GroupedLinear{.rows = 100, .experts = 4, .in = 64, .out = 32, .training = Training::full}, base = op::GroupedLinear{.rows = 100, .experts = 4, .in = 64, .out = 32};
  EXPECT_DOUBLE_EQ(both(full, trained), 3 * forward(full));
  EXPECT_DOUBLE_EQ(both(base, trained), 2 * forward(base)) << "a frozen weight has no gradient even if asked for";
  EXPECT_DOUBLE_EQ(flops(base, Pass::backward, {false, true}).value, 0);
}

TEST(Lora, CostsItsArithmeticShareOverTheFrozenProducts) {
  // (6 t r (K + N)) / (4 t K N) = 1.5 r (K + N) / (K N)
  const double k = 7168, n = 12288, r = 64;
  const op::Linear base{.tokens = 4096, .in = 7168, .out = 12288};
  op::Linear pair = base;
  pair.training = Training::lora;
  pair.lora_rank = 64;
  EXPECT_NEAR(both(pair, trained) / both(base, frozen) - 1, 1.5 * r * (k + n) / (k * n), 1e-12);
  const op::GroupedLinear grouped_base{.rows = 4096, .experts = 8, .in = 7168, .out = 12288};
  op::GroupedLinear grouped = grouped_base;
  grouped.training = Training::lora;
  grouped.lora_rank = 64;
  EXPECT_NEAR(both(grouped, trained) / both(grouped_base, frozen) - 1, 1.5 * r * (k + n) / (k * n), 1e-12);
}

TEST(VisibleKeys, AgreeWithCountingPairsUpToTheDiagonal) {
  for (const std::int64_t s : {1, 7, 64, 1000})
    for (const std::int64_t w : {0, 1, 5, 64, 2000}) {
      double pairs = 0;
      for (std::int64_t i = 0; i < s; ++i) pairs += static_cast<double>(w ? std::min(i + 1, w) : i + 1);
      EXPECT_NEAR(op::visible_keys(s, w), pairs / static_cast<double>(s), 0.5 + 1e-9) << s << " " << w;
    }
  EXPECT_DOUBLE_EQ(op::visible_keys(100, 100), op::visible_keys(100)) << "a window as long as the sequence is no window";
}

TEST(Kda, CostsThePublishedCountsATokenAndHead) {
  const Op kda = op::Kda{.tokens = 1, .sequence_length = 1, .heads = 1, .head_dim = 128};
  EXPECT_NEAR(forward(kda), 183e3, 0.5e3);
  EXPECT_NEAR(flops(kda, Pass::backward).value, 560e3, 0.5e3);
  EXPECT_NEAR(forward(op::Kda{.tokens = 16384, .sequence_length = 16384, .heads = 96, .head_dim = 128}), 288e9, 0.5e9);
  EXPECT_NEAR(flops(op::Kda{.tokens = 16384, .sequence_length = 16384, .heads = 96, .head_dim = 128}, Pass::backward).value, 881e9, 1e9);
}

TEST(GatedDeltaNet, CostsAsKdaWhereKeysAndValuesAreAlike) {
  const Op kda = op::Kda{.tokens = 64, .sequence_length = 64, .heads = 4, .head_dim = 128};
  const Op gdn = op::GatedDeltaNet{.tokens = 64, .sequence_length = 64, .k_heads = 2, .v_heads = 4, .d_k = 128, .d_v = 128};
  EXPECT_DOUBLE_EQ(forward(kda), forward(gdn));
  EXPECT_DOUBLE_EQ(flops(kda, Pass::backward).value, flops(gdn, Pass::backward).value);
}

TEST(SparseAttention, CostsTheFloorOfItsSelectedKeys) {
  // Every query selecting 2048 keys: 1.17 TFLOP forward for 4096 queries of 64 heads, 2.95 backward.
  const op::SparseAttention full{.tokens = 4096, .sequence_length = std::int64_t{1} << 40, .heads = 64, .d_qk = 576, .d_v = 512, .topk = 2048};
  EXPECT_NEAR(forward(full), 1.17e12, 0.005e12);
  EXPECT_NEAR(flops(full, Pass::backward).value, 2.95e12, 0.01e12);
  op::SparseAttention early = full;
  early.sequence_length = 4096;
  EXPECT_NEAR(forward(early) / forward(full), 0.75, 1e-6) << "half the queries of a 4096-token sequence see fewer than 2048 keys";
}

TEST(Indexer, CostsItsVisiblePairs) {
  EXPECT_NEAR(forward(op::Indexer{.tokens = 16384, .sequence_length = 16384, .heads = 64, .dim = 128, .topk = 2048}), 2.2e12, 0.05e12);
  EXPECT_LE(workspace(op::Indexer{.tokens = 131072, .sequence_length = 131072, .heads = 64, .dim = 128, .topk = 2048}, Pass::forward).value, std::int64_t{64} << 20);
}

TEST(CrossEntropy, NeedsThreeProductsOrTwoFusedAndNeverTheWholeLogits) {
  op::CrossEntropy loss{.tokens = 8192, .hidden = 7168, .vocabulary = 163840};
  const double product = 2.0 * 8192 * 7168 * 163840, softmax = 4.0 * 8192 * 163840;
  EXPECT_NEAR(product, 19.2e12, 0.1e12);
  EXPECT_DOUBLE_EQ(both(loss, frozen), 3 * product + 2 * softmax);
  EXPECT_LE(workspace(loss, Pass::backward, frozen).value, 500'000'000);
  loss.fused_gradient = true;
  EXPECT_NEAR(both(loss, frozen) / product, 2, 0.01);
  EXPECT_LE(workspace(loss, Pass::forward).value, 500'000'000);
  loss.training = Training::full;
  EXPECT_FALSE(loss.fused()) << "a trained head has no fused form";
  EXPECT_DOUBLE_EQ(both(loss, trained), 4 * product + 2 * softmax);
}

TEST(Head, CostsTheSameTiedOrNot) {
  EXPECT_DOUBLE_EQ(forward(op::Embedding{.tokens = 100, .vocabulary = 151936, .hidden = 2048}), 0) << "a look-up is no product";
}

TEST(HeadLinear, AbsorbsTheKeyProjectionAtTheCostOfOneProductAHead) {
  // MLA's kv_b: 128 key and 128 value rows a head over a latent of 512.
  const op::HeadLinear into{.tokens = 10, .heads = 96, .in = 512, .block = 256, .count = 128, .transposed = true}, out{.tokens = 10, .heads = 96, .in = 512, .block = 256, .begin = 128, .count = 128};
  EXPECT_DOUBLE_EQ(forward(into) + forward(out), forward(op::Linear{.tokens = 10, .in = 512, .out = 96 * 256}));
}

}  // namespace
}  // namespace moeplan
