/// \file
/// Faults that users of public kernels reported, held against the references and the contracts: docs/fault_reports.md says which report is which test.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/device_scratch.hpp"
#include "kernels/kda/reference.hpp"
#include "tests/kernels/call_data.hpp"

namespace moeplan {
namespace {

using test::CallData;

std::size_t at(const Op& op, std::string_view name) {
  const Operands list = operands(op);
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].name == name) return i;
  throw std::logic_error("no operand " + std::string(name));
}

// Report 14 (FlashQLA 28): the decay of a sequence's first token multiplies a state of zeros.
TEST(PublicReports, TheFirstTokensDecayHasNoGradientWithoutAState) {
  namespace kda = kernels::kda::reference;
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  const auto draw = [&](std::size_t n) {
    std::vector<double> v(n);
    for (double& x : v) x = normal(random);
    return v;
  };
  constexpr int tokens = 130, heads = 2, d = 8;
  for (const kernels::kda::GateForm form : {kernels::kda::GateForm::softplus, kernels::kda::GateForm::bounded}) {
    kda::Inputs<double> in{.cu_seqlens = {0, 65, tokens}, .heads = heads, .head_dim = d, .gate_form = {.form = form}, .scale = 0.3,
                           .q = draw(tokens * heads * d), .k = draw(tokens * heads * d), .v = draw(tokens * heads * d), .gate = draw(tokens * heads * d),
                           .beta = std::vector<double>(tokens * heads, 0.7), .a_log = std::vector<double>(heads, 0.4), .dt_bias = draw(heads * d),
                           .initial_state = std::vector<double>(2 * heads * d * d, 0.0)};
    const auto gradients = kda::recurrent_backward(in, draw(tokens * heads * d), std::vector<double>(2 * heads * d * d, 0.0));
    double largest = 0;
    for (const double g : gradients.gate) largest = std::max(largest, std::abs(g));
    EXPECT_GT(largest, 0.01);
    for (const int first : {0, 65})
      for (int i = 0; i < heads * d; ++i) EXPECT_EQ(gradients.gate[static_cast<std::size_t>(first * heads * d + i)], 0) << "token " << first;
  }
}

// Report 18 (cudnn-frontend 676, 785) and 22: padded rows, rows without keys, ids that name no key, sinks that dwarf the logits.
TEST(PublicReports, RowsWithoutKeysHaveNoOutputAndNoGradientWhateverTheSinks) {
  const op::SparseAttention op{.tokens = 6, .sequence_length = 6, .heads = 2, .d_qk = 4, .d_v = 3, .topk = 3, .sinks = true, .training = Training::full};
  CallData<double> data = test::random_inputs(op, 5);
  data.buffers[at(op, "indices")] = {0, -1, -1, -1, -1, -1, 2, -1, 1, 1 << 20, -1, 2, 4, 3, -1, -1, -1, -1};
  data.views[at(op, "indices")].data = data.buffers[at(op, "indices")].data();
  for (const double sink : {-1e4, 0.0, 1e4}) {
    data.buffers[at(op, "sinks")].assign(2, sink);
    data.views[at(op, "sinks")].data = data.buffers[at(op, "sinks")].data();
    reference::forward<double>(op, data.views);
    CallData<double> gradients(op.operands(), 1);
    reference::backward<double>(op, data.views, gradients.views);
    for (const auto& buffer : {data.buffers[at(op, "y")], gradients.buffers[at(op, "q")], gradients.buffers[at(op, "kv")], gradients.buffers[at(op, "sinks")]})
      for (const double v : buffer) EXPECT_TRUE(std::isfinite(v));
    for (const std::size_t row : {std::size_t{1}, std::size_t{5}}) {
      for (std::size_t c = 0; c < 6; ++c) EXPECT_EQ(data.buffers[at(op, "y")][row * 6 + c], 0);
      for (std::size_t c = 0; c < 8; ++c) EXPECT_EQ(gradients.buffers[at(op, "q")][row * 8 + c], 0);
    }
    for (const double v : data.buffers[at(op, "y")]) {
      EXPECT_TRUE(sink != 1e4 || v == 0) << "the sink takes all";
    }
  }
}

// Reports 25 and 26 (sglang 24654, vllm-ascend 15053): what a query selects does not depend on which queries are in its call.
TEST(PublicReports, AQuerySelectsTheSameKeysInTheSameOrderInAnyCall) {
  const op::Indexer whole{.tokens = 40, .sequence_length = 40, .heads = 3, .dim = 4, .topk = 9};
  CallData<double> all = test::random_inputs(whole, 7);
  reference::forward<double>(whole, all.views);
  for (const std::int64_t queries : {1, 13, 40}) {
    const op::Indexer part{.tokens = queries, .sequence_length = 40, .heads = 3, .dim = 4, .topk = 9, .kv_tokens = 40};
    CallData<double> some(part.operands());
    const auto last = [&](std::string_view name, std::int64_t width) {
      const auto& from = all.buffers[at(whole, name)];
      std::copy(from.end() - queries * width, from.end(), some.buffers[at(part, name)].begin());
    };
    last("q", 12), last("head_weights", 3);
    some.buffers[at(part, "k")] = all.buffers[at(whole, "k")];
    for (std::size_t i = 0; i < some.views.size(); ++i) some.views[i].data = some.buffers[i].data();
    reference::forward<double>(part, some.views);
    const auto& want = all.buffers[at(whole, "indices")];
    EXPECT_EQ(some.buffers[at(part, "indices")], std::vector<double>(want.end() - queries * 9, want.end())) << queries << " queries";
  }
}

// Report 29 (transformers 48788, vllm 49357): scratch of tokens x tokens.
TEST(PublicReports, TheIndexersScratchIsABandAndNotTokensTimesKeys) {
  for (const std::int64_t tokens : {4096, 131072, 1 << 20}) {
    const op::Indexer op{.tokens = tokens, .sequence_length = tokens, .heads = 64, .dim = 128, .topk = 2048};
    EXPECT_LE(device_workspace(op, Pass::forward).value, (std::int64_t{64} << 20) + 8 * tokens + 256) << tokens;
    EXPECT_LE(op.workspace(Pass::forward, {}).value, std::int64_t{64} << 20) << tokens;
  }
}

// Report 30 (Megatron-LM 5099): gradients that are kept though nothing is learned. The selection has none here.
TEST(PublicReports, AFrozenIndexerKeepsNothingForABackward) {
  const op::Indexer op{.tokens = 64, .sequence_length = 64, .heads = 4, .dim = 16, .topk = 8};
  for (const Operand& o : op.operands())
    for (const Wants wants : {Wants{true, false}, Wants{false, true}, Wants{true, true}}) EXPECT_FALSE(needed(o.need, wants)) << o.name;
  EXPECT_EQ(flops(op, Pass::backward, {true, true}).value, 0);
  EXPECT_EQ(device_workspace(op, Pass::backward, {true, true}).value, 0);
}

// Report 40 (Liger 507): a loss that is 0 where nobody asks for the gradient.
TEST(PublicReports, TheLossIsTheSameWhetherOrNotItsGradientIsMade) {
  op::CrossEntropy op{.tokens = 9, .hidden = 6, .vocabulary = 31, .token_chunk = 4, .vocabulary_chunk = 8};
  CallData<double> plain = test::random_inputs(op, 2);
  reference::forward<double>(op, plain.views);
  const double loss = plain.buffers[at(op, "loss")][0];
  EXPECT_GT(loss, 0);
  op.fused_gradient = true;
  CallData<double> fused = test::random_inputs(op, 2);
  reference::forward<double>(op, fused.views);
  EXPECT_NEAR(fused.buffers[at(op, "loss")][0], loss, 1e-12 * loss);
}

// Report 41 (Liger 941): nothing is won, and nothing may be lost, where the whole vocabulary fits a chunk.
TEST(PublicReports, ASmallVocabularyIsOneChunkOfItsOwnSize) {
  const op::CrossEntropy small{.tokens = 4096, .hidden = 512, .vocabulary = 1000, .fused_gradient = true};
  op::CrossEntropy exact = small;
  exact.vocabulary_chunk = 1000;
  EXPECT_EQ(device_workspace(small, Pass::forward).value, device_workspace(exact, Pass::forward).value);
  EXPECT_LT(device_workspace(small, Pass::forward).value, 4 * 4096 * 1000) << "fp32 logits of all tokens";
  EXPECT_EQ(flops(small, Pass::forward, {}).value, flops(exact, Pass::forward, {}).value);
}

}  // namespace
}  // namespace moeplan
