/// References against numbers one can check by head, and the faults that public kernels were reported for.

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <numeric>

#include "kernels/quantise/rounding.hpp"
#include "kernels/rope/frequencies.hpp"
#include "tests/kernels/call_data.hpp"

namespace moeplan {
namespace {

using test::CallData;

/// Runs forward on the operands given in order (those that are written are left out).
CallData<double> run(const Op& op, std::initializer_list<std::vector<double>> inputs) {
  const Operands list = operands(op);
  CallData<double> data(list);
  auto next = inputs.begin();
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].role != Role::output && list[i].role != Role::aux) std::copy(next->begin(), next->end(), data.buffers[i].begin()), ++next;
  reference::forward<double>(op, data.views);
  return data;
}

/// z = (3, 2.9, 1, 2): at 2 x jitter = 0.1 only 2.9 comes close to 3 ((3 - 2.9) / 3 = 0.033; (3 - 2) / 3 = 0.33), and 2.9's own softmax is without 3.
TEST(RouterReference, SparseMixerWeighsEachChoiceAmongThoseCloseToIt) {
  const op::Router op{.tokens = 1, .hidden = 1, .experts = 4, .top_k = 2, .score = RouterScore::sparse_mixer, .normalise = false, .jitter = 0.05};
  const auto data = run(op, {{1}, {3, 2.9, 1, 2}});
  EXPECT_NEAR(data.buffers[2][0], 1 / (1 + std::exp(-0.1)), 1e-12);
  EXPECT_NEAR(data.buffers[2][1], 1, 1e-12);
  EXPECT_EQ(data.buffers[3], (std::vector<double>{0, 1}));
}

TEST(LinearReference, MultipliesByTheTransposedWeight) {
  const auto data = run(op::Linear{.tokens = 1, .in = 2, .out = 2}, {{1, 2}, {3, 4, 5, 6}});
  EXPECT_EQ(data.buffers[2], (std::vector<double>{11, 17}));
}

TEST(RmsNormReference, DividesByTheRootMeanSquare) {
  const auto data = run(op::RmsNorm{.tokens = 1, .hidden = 2, .epsilon = 1e-12}, {{3, 4}, {1, 2}});
  const double rms = std::sqrt(12.5);
  EXPECT_NEAR(data.buffers[2][0], 3 / rms, 1e-9);
  EXPECT_NEAR(data.buffers[2][1], 8 / rms, 1e-9);
}

TEST(RopeReference, TurnsAQuarterAtTheAngleOfAQuarter) {
  // Two columns are one pair at frequency 1; position 1 turns by one radian.
  const auto data = run(op::Rope{.tokens = 2, .heads = 1, .head_dim = 2, .rotary_dim = 2, .sequence_length = 2}, {{1, 0, 1, 0}});
  EXPECT_NEAR(data.buffers[1][0], 1, 1e-12);
  EXPECT_NEAR(data.buffers[1][2], std::cos(1.0), 1e-12);
  EXPECT_NEAR(data.buffers[1][3], std::sin(1.0), 1e-12);
}

/// Llama 3.1 (theta 5e5, 128 columns, factor 8, factors 1 and 4, 8192 positions) by the formula of its release, in wavelengths.
TEST(RopeReference, StretchesLlama3sSlowPairsOnly) {
  const auto f = op::frequencies({.head_dim = 128, .rotary_dim = 128, .theta = 5e5, .yarn_factor = 8, .yarn_original = 8192, .yarn_beta_fast = 4, .yarn_beta_slow = 1, .ramp_in_turns = true});
  EXPECT_EQ(f[0], 1);
  EXPECT_NEAR(f[28] / 0.003211445994752591, 1, 1e-12);
  EXPECT_NEAR(f[30] / 0.0013718935677611381, 1, 1e-12);
  EXPECT_NEAR(f[34] / 0.0001785078127679964, 1, 1e-12);
  EXPECT_NEAR(f[63] / 3.068925988914511e-07, 1, 1e-12);
}

TEST(RopeReference, DividesEveryFrequencyOfALinearStretch) {
  const auto f = op::frequencies({.head_dim = 4, .rotary_dim = 4, .theta = 1e4, .yarn_factor = 4});
  EXPECT_NEAR(f[0], 0.25, 1e-15);
  EXPECT_NEAR(f[1], 0.0025, 1e-15);
}

TEST(AttentionReference, GivesTheFirstTokenItsOwnValueAndNothingToTheSink) {
  const op::Attention attention{.tokens = 2, .sequence_length = 2, .heads = 1, .kv_heads = 1, .d_qk = 1, .d_v = 1};
  const auto data = run(attention, {{0, 0}, {1, 1}, {5, 7}});
  EXPECT_DOUBLE_EQ(data.buffers[3][0], 5);
  EXPECT_DOUBLE_EQ(data.buffers[3][1], 6) << "equal logits average";
  op::Attention sunk = attention;
  sunk.sinks = true;
  EXPECT_NEAR(run(sunk, {{0, 0}, {1, 1}, {5, 7}, {0}}).buffers[4][0], 2.5, 1e-12) << "a sink as large as the only logit halves the output";
}

TEST(AttentionReference, KeepsPackedSequencesApart) {
  const op::Attention packed{.tokens = 3, .sequence_length = 2, .heads = 1, .kv_heads = 1, .d_qk = 1, .d_v = 1, .packed_sequences = 2};
  EXPECT_EQ(run(packed, {{0, 0, 0}, {0, 0, 0}, {2, 4, 100}, {0, 2, 3}}).buffers[4], (std::vector<double>{2, 3, 100}));
}

TEST(CrossEntropyReference, IsTheLogOfTheVocabularyForEqualLogits) {
  EXPECT_NEAR(run(op::CrossEntropy{.tokens = 2, .hidden = 1, .vocabulary = 4}, {{0, 0}, {1, -100}, {1, 2, 3, 4}}).buffers[3][0], std::log(4.0), 1e-12);
}

TEST(CrossEntropyReference, IsZeroWithZeroGradientsWhenEveryLabelIsIgnored) {
  const op::CrossEntropy op{.tokens = 2, .hidden = 1, .vocabulary = 3, .training = Training::full};
  auto data = run(op, {{1, 2}, {-100, -100}, {1, 2, 3}});
  EXPECT_EQ(data.buffers[3][0], 0);
  CallData<double> gradients(op.operands(), 9);
  reference::backward<double>(op, data.views, gradients.views);
  EXPECT_EQ(gradients.buffers[0], (std::vector<double>{0, 0}));
  EXPECT_EQ(gradients.buffers[2], (std::vector<double>{0, 0, 0}));
}

TEST(CrossEntropyReference, GivesTheSameInputGradientFusedAndRecomputed) {
  op::CrossEntropy op{.tokens = 2, .hidden = 2, .vocabulary = 3, .z_loss = 0.1};
  const std::initializer_list<std::vector<double>> inputs{{0.3, -0.2, 0.5, 0.1}, {1, 2}, {0.1, 0.2, -0.3, 0.4, 0.5, -0.6}};
  auto plain = run(op, inputs);
  CallData<double> gradients(op.operands(), 1);
  reference::backward<double>(op, plain.views, gradients.views);
  op.fused_gradient = true;
  const auto fused = run(op, inputs);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(fused.buffers[4][i], gradients.buffers[0][i], 1e-12);
}

TEST(IndexerReference, BreaksTiesToTheLowerKeyAndPadsWithMinusOne) {
  // relu makes every score 0: the tie rule alone decides.
  const auto data = run(op::Indexer{.tokens = 4, .sequence_length = 4, .heads = 1, .dim = 1, .topk = 2}, {{1, 1, 1, 1}, {-1, -2, -3, -4}, {1, 1, 1, 1}});
  EXPECT_EQ(data.buffers[3], (std::vector<double>{0, -1, 0, 1, 0, 1, 0, 1}));
}

TEST(SparseAttentionReference, IsDenseAttentionWhereEverythingIsSelected) {
  const op::Attention dense{.tokens = 3, .sequence_length = 3, .heads = 2, .kv_heads = 1, .d_qk = 2, .d_v = 2};
  const op::SparseAttention sparse{.tokens = 3, .sequence_length = 3, .heads = 2, .kv_heads = 1, .d_qk = 2, .d_v = 2, .topk = 3, .latent = false};
  const std::vector<double> q{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, k{.1, .2, .3, .4, .5, .6}, v{1, 2, 3, 4, 5, 6};
  const auto a = run(dense, {q, k, v}), b = run(sparse, {q, k, v, {0, -1, -1, 0, 1, -1, 0, 1, 2}});
  for (std::size_t i = 0; i < a.buffers[3].size(); ++i) EXPECT_NEAR(a.buffers[3][i], b.buffers[4][i], 1e-12);
}

TEST(ShortConvReference, SeesNothingBeforeItsSequence) {
  const op::ShortConv conv{.tokens = 4, .sequence_length = 2, .channels = 1, .taps = 2, .silu = false};
  EXPECT_EQ(run(conv, {{1, 2, 3, 4}, {10, 1}}).buffers[2], (std::vector<double>{1, 12, 3, 34}));
}

TEST(AdamWReference, MovesByTheLearningRateInTheFirstStep) {
  // With both moments zero the first update is g / (|g| + eps), whatever g is.
  const auto data = run(op::AdamW{.elements = 2, .epsilon = 0, .weight_decay = 0}, {{4, -0.5}, {0.1, 1, 1}, {1, 1}, {0, 0}, {0, 0}});
  EXPECT_NEAR(data.buffers[8][0], 0.9, 1e-12);
  EXPECT_NEAR(data.buffers[8][1], 1.1, 1e-12);
}

TEST(HyperPreReference, MixesByADoublyStochasticMatrix) {
  const op::HyperPre op{.tokens = 1, .hidden = 2, .streams = 3};
  const auto data = test::random_inputs(op, 3);
  reference::forward<double>(op, data.views);
  const auto& mixing = data.buffers[6];
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(mixing[3 * i] + mixing[3 * i + 1] + mixing[3 * i + 2], 1, 1e-6);
    EXPECT_NEAR(mixing[i] + mixing[3 + i] + mixing[6 + i], 1, 1e-6);
  }
}

TEST(Quantise, KeepsWhatTheTypeCanHold) {
  EXPECT_EQ(reference::quantised(DType::mxfp4, 3, 6), 3);
  EXPECT_EQ(reference::quantised(DType::mxfp4, 2.4, 6), 2);
  EXPECT_EQ(reference::quantised(DType::mxfp4, 0.25, 6), 0) << "half of the smallest value goes to the even one";
  EXPECT_EQ(reference::quantised(DType::fp8, 448, 448), 448);
  EXPECT_EQ(reference::quantised(DType::fp8, 17, 448), 16) << "sixteenths of a power of two in steps of two";
  EXPECT_EQ(reference::quantised(DType::int8, 100, 127), 100);
  EXPECT_EQ(reference::quantised(DType::nf4, -2, 2), -2);
  EXPECT_EQ(reference::quantised(DType::int4, 0, 0), 0);
}

}  // namespace
}  // namespace moeplan
