#include "sim/program/block.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/program/builder.hpp"

namespace moeplan {
namespace {

/// x [4, 8] -> norm -> linear 8 -> 16 "q_proj" -> linear 16 -> 8 "o_proj" -> + x, all bf16.
Graph small_layer(const Workload& workload) {
  BlockContext context{.tokens = 4, .sequence_length = 4};
  context.workload = workload;
  Builder b("small", context);
  const ValueId x = b.input("x", {4, 8});
  const ValueId y = b.rms_norm(x, "norm");
  const ValueId q = b.linear(y, "q_proj", 16, WeightClass::attention);
  const ValueId o = b.linear(q, "o_proj", 8, WeightClass::attention);
  op::Add add{};
  add.tokens = 4;
  add.hidden = 8;
  b.output(b.call(add, {x, o}).front());
  return b.take();
}

Workload tuned(Tuning attention) {
  Workload w;
  w.attention = attention;
  w.dense = {};
  return w;
}
const Tuning kFrozen{}, kFull{Training::full}, kLora{Training::lora, 2, 4};

std::int64_t kept_elements(const Block& b) {
  std::int64_t n = 0;
  for (const ValueId v : b.kept) n += b.values[static_cast<std::size_t>(v)].shape.elements();
  return n;
}
std::size_t count(const std::vector<BlockNode>& nodes, std::string_view name) {
  return static_cast<std::size_t>(std::count_if(nodes.begin(), nodes.end(), [&](const BlockNode& n) {
    const OpCall* op = std::get_if<OpCall>(&n.call);
    return op && kind(op->op) == name;
  }));
}

TEST(Block, IsSoundUnderEveryTuningAndRecompute) {
  for (const Tuning& t : {kFrozen, kFull, kLora})
    for (const Recompute r : {Recompute::none, Recompute::selective, Recompute::full})
      for (const bool grad : {false, true}) EXPECT_EQ(verify(differentiate(small_layer(tuned(t)), r, grad)), std::vector<std::string>{});
}

TEST(Block, AllFrozenAndNothingTrainedBeforeHasNoBackward) {
  const Block b = differentiate(small_layer(tuned(kFrozen)), Recompute::none, false);
  EXPECT_TRUE(b.backward.empty());
  EXPECT_TRUE(b.kept.empty());
}

// Frozen weights need no inputs again: only the norm keeps its input (4 x 8) and inverse rms (4).
TEST(Block, FrozenLinearsKeepNothing) { EXPECT_EQ(kept_elements(differentiate(small_layer(tuned(kFrozen)), Recompute::none, true)), 32 + 4); }

// Trained: besides, q_proj's input (4 x 8) and o_proj's input (4 x 16).
TEST(Block, TrainedLinearsKeepTheirInputs) { EXPECT_EQ(kept_elements(differentiate(small_layer(tuned(kFull)), Recompute::none, true)), 36 + 32 + 64); }

// LoRA: as trained, plus x A^T of both (4 x 2 each).
TEST(Block, LoraKeepsInputsAndTheNarrowProduct) { EXPECT_EQ(kept_elements(differentiate(small_layer(tuned(kLora)), Recompute::none, true)), 36 + 32 + 64 + 16); }

TEST(Block, FullRecomputeKeepsOnlyTheInputAndRepeatsWhatBackwardReads) {
  const Block b = differentiate(small_layer(tuned(kFull)), Recompute::full, true);
  EXPECT_EQ(b.kept, b.inputs);
  // q_proj's output is o_proj's input: norm and q_proj are repeated, o_proj and the sum are not.
  const auto repeated = std::count_if(b.backward.begin(), b.backward.end(), [](const BlockNode& n) { return n.recompute; });
  EXPECT_EQ(repeated, 2);
}

TEST(Block, SelectiveRecomputeRepeatsTheNormAndKeepsTheProjection) {
  const Block b = differentiate(small_layer(tuned(kFull)), Recompute::selective, true);
  EXPECT_EQ(kept_elements(b), 32 + 64);  // x, and q (o_proj's input)
}

// Adapters get a gradient, the frozen base does not.
TEST(Block, OnlyTrainedWeightsHaveGradients) {
  const Block b = differentiate(small_layer(tuned(kLora)), Recompute::none, true);
  for (std::size_t w = 0; w < b.weights.size(); ++w) EXPECT_EQ(b.weight_grads[w] >= 0, b.weights[w].adapter) << b.weights[w].name;
}

// The residual splits x in two: their gradients are added once, and the sum itself has no backward call.
TEST(Block, GradientsOfASharedValueAreAdded) { EXPECT_EQ(count(differentiate(small_layer(tuned(kFrozen)), Recompute::none, true).backward, "add"), 1u); }

TEST(BlockMemory, KeptBytesAreThoseOfTheKeptValues) {
  const BlockMemory m = block_memory(differentiate(small_layer(tuned(kFull)), Recompute::none, true));
  EXPECT_EQ(m.kept_bytes().value, 2 * (32 + 32 + 64) + 4 * 4);
}

// Forward of the frozen layer: the peak is x (64 B), the norm's row scales (16 B), y (64 B) and q (128 B), or x, scales, q and o (64 B): equal.
TEST(BlockMemory, ForwardPeakIsTheLargestSumOfLiveValues) {
  const BlockMemory m = block_memory(differentiate(small_layer(tuned(kFrozen)), Recompute::none, true));
  EXPECT_EQ(m.forward.peak().value, 64 + 16 + 64 + 128);
}

}  // namespace
}  // namespace moeplan
