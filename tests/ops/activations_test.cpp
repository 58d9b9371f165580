/// Bytes kept for the backward of whole layers against the published activation formulas. A tensor that several calls need is kept once.

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kernels/catalogue.hpp"

namespace moeplan {
namespace {

/// Names the values of a chain of calls and adds up those that a backward reads again.
class Tape {
 public:
  /// `values` name the operands that are no weights, in the operator's order.
  void call(const Op& op, std::initializer_list<std::string> values) {
    auto name = values.begin();
    const Wants wants = possible(op, {true, true});
    for (const Operand& o : operands(op)) {
      if (o.role == Role::weight) continue;
      ASSERT_NE(name, values.end()) << kind(op);
      if (needed(o.need, wants)) kept_[*name] = o.bytes().value;
      ++name;
    }
    ASSERT_EQ(name, values.end()) << kind(op);
  }
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& [name, each] : kept_) sum += each;
    return sum;
  }

 private:
  std::map<std::string, std::int64_t> kept_;
};

constexpr std::int64_t t = 512, h = 256, heads = 8;

std::int64_t gpt_layer(Training training) {
  const auto linear = [&](std::int64_t in, std::int64_t out) { return op::Linear{.tokens = t, .in = in, .out = out, .training = training}; };
  const op::LayerNorm norm{.tokens = t, .hidden = h, .training = training};
  Tape tape;
  tape.call(norm, {"x", "n1", "mean1", "std1"});
  tape.call(linear(h, h), {"n1", "q"});
  tape.call(linear(h, h), {"n1", "k"});
  tape.call(linear(h, h), {"n1", "v"});
  tape.call(op::Attention{.tokens = t, .sequence_length = t, .heads = heads, .kv_heads = heads, .d_qk = h / heads, .d_v = h / heads}, {"q", "k", "v", "o", "lse"});
  tape.call(linear(h, h), {"o", "p"});
  tape.call(op::Add{.tokens = t, .hidden = h}, {"x", "p", "r"});
  tape.call(norm, {"r", "n2", "mean2", "std2"});
  tape.call(linear(h, 4 * h), {"n2", "up"});
  tape.call(op::Activate{.tokens = t, .width = 4 * h, .function = op::Function::gelu}, {"up", "g"});
  tape.call(linear(4 * h, h), {"g", "d"});
  tape.call(op::Add{.tokens = t, .hidden = h}, {"r", "d", "y"});
  return tape.bytes();
}

TEST(KeptActivations, OfATrainedGptLayerAreKorthikantis34sbhWithoutDropoutMasksAndSoftmax) {
  // Korthikanti et al. 2022 have 34 s b h + 5 a s^2 b: 2 s b h of it are two dropout masks, which fine-tuning does not have, and the
  // quadratic part is softmax output and its dropout, which the flash form replaces with one float a row and head. Theirs leaves out the
  // norms' statistics (two floats a row and norm).
  EXPECT_EQ(gpt_layer(Training::full), 32 * t * h + 4 * t * heads + 2 * 8 * t);
}

TEST(KeptActivations, OfAFrozenLayerLeaveOutTheInputsOfProducts) {
  // Left: the norms' inputs (4 t h), q, k, v, o (8 t h) and the activation's input (8 t h).
  EXPECT_EQ(gpt_layer(Training::frozen), 20 * t * h + 4 * t * heads + 2 * 8 * t);
}

struct Moe {
  std::int64_t tokens = 64, hidden = 128, inner = 48, experts = 16, top_k = 4;
};

std::int64_t experts_kept(const Moe& m, Training training, bool weights_grad, std::int64_t rank = 0) {
  const std::int64_t rows = m.tokens * m.top_k;
  const auto grouped = [&](std::int64_t in, std::int64_t out) {
    return op::GroupedLinear{.rows = rows, .experts = m.experts, .in = in, .out = out, .training = training, .lora_rank = rank};
  };
  Tape tape;
  const auto linear = [&](const op::GroupedLinear& op, const std::string& x, const std::string& y) {
    if (rank) tape.call(op, {x, y, y + "_a"});
    else tape.call(op, {x, y});
  };
  linear(grouped(m.hidden, 2 * m.inner), "rows", "gate_up");
  tape.call(op::Glu{.tokens = rows, .intermediate = m.inner, .ragged = true}, {"gate_up", "act"});
  linear(grouped(m.inner, m.hidden), "act", "out");
  tape.call(op::Combine{.tokens = m.tokens, .top_k = m.top_k, .width = m.hidden, .weights_grad = weights_grad}, {"out", "weights", "map", "y"});
  return tape.bytes() - 8 * rows;   // weights and map, 4 bytes each a copy
}

TEST(KeptActivations, OfTrainedExpertsAreTheRoutedTermOfThePublishedFormula) {
  // T K (h + 3 f) 2 bytes: the expert's input, gate and up, their product. The rows that `combine` keeps for the gradient of the routing
  // weights come on top; the published term leaves them out (it can be had without them).
  const Moe m;
  EXPECT_EQ(experts_kept(m, Training::full, false), m.tokens * m.top_k * (m.hidden + 3 * m.inner) * 2);
  EXPECT_EQ(experts_kept(m, Training::full, true), m.tokens * m.top_k * (2 * m.hidden + 3 * m.inner) * 2);
}

TEST(KeptActivations, OfFrozenExpertsAreGateAndUpOnly) {
  const Moe m;
  EXPECT_EQ(experts_kept(m, Training::frozen, false), m.tokens * m.top_k * 2 * m.inner * 2);
}

TEST(KeptActivations, OfExpertsWithLoraAreAsTrainedPlusTheLowRankProducts) {
  const Moe m;
  EXPECT_EQ(experts_kept(m, Training::lora, false, 8), m.tokens * m.top_k * (m.hidden + 3 * m.inner + 2 * 8) * 2);
}

TEST(KeptActivations, OfARouterAreItsScoresAndChoice) {
  const op::Router frozen{.tokens = 10, .hidden = 32, .experts = 16, .top_k = 4};
  EXPECT_EQ(kept_bytes(frozen).value, 10 * (16 * 4 + 4 * 4));
  op::Router trained = frozen;
  trained.training = Training::full;
  EXPECT_EQ(kept_bytes(trained).value, 10 * (16 * 4 + 4 * 4 + 32 * 2));
}

TEST(KeptActivations, OfFlashAttentionAreQueryKeysValuesOutputAndOneFloatAHead) {
  // 2 T (q + 2 kv + out) + 4 T heads, per token (Primus' flash term with its lse).
  const op::Attention gqa{.tokens = 100, .sequence_length = 100, .heads = 32, .kv_heads = 4, .d_qk = 128, .d_v = 128};
  EXPECT_EQ(kept_bytes(gqa).value, 100 * (2 * (4096 + 2 * 512 + 4096) + 4 * 32));
}

TEST(KeptActivations, OfAttentionResidualsAreTheStreamsThemselves) {
  const op::AttentionResidual mix{.tokens = 10, .hidden = 64, .blocks = 7};
  EXPECT_EQ(kept_bytes(mix).value, 10 * 8 * (2 * 64 + 8));
}

}  // namespace
}  // namespace moeplan
