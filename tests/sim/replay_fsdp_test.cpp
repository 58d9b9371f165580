/// What FSDP2 allocates, call by call: which buffers are there together, and when each goes.

#include "sim/memory/replay_fsdp.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "core/configs.hpp"
#include "sim/memory/replay.hpp"
#include "sim/program/architectures/architecture.hpp"

namespace moeplan {
namespace {

/// Full training cut over two ranks as FSDP2 does, weights in bf16 and all else fp32; no logits.
Problem fsdp2(const char* model, std::int64_t sequence) {
  const std::filesystem::path configs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";
  Problem p;
  p.model = import_model_file(configs / "models" / "tiny" / model);
  p.cluster = load_cluster(configs, "8xh100");
  for (Tuning Workload::*w : {&Workload::attention, &Workload::dense, &Workload::shared, &Workload::experts,
                              &Workload::router, &Workload::embedding, &Workload::head, &Workload::norm,
                              &Workload::other})
    p.workload.*w = Tuning{.training = Training::full};
  p.workload.sequence_length = sequence;
  p.runtime.kept["copied_out"] = 1;
  return p;
}

Plan cut(const Problem& p) {
  Plan plan;
  plan.micro_batches = 1;
  plan.stage_layers = {static_cast<std::int64_t>(p.model.layers.size())};
  plan.recompute = Recompute::none;
  plan.parallelism.dp_shard = 2;
  return plan;
}

/// Trained elements of the largest layer, and of embedding and head together.
std::pair<double, double> widest_layer_and_ends(const Program& program, const Problem& problem) {
  double layer = 0, ends = 0;
  for (const Slot& s : program.slots) {
    double elements = 0;
    for (const Weight& w : program.blocks[static_cast<std::size_t>(s.block)].weights)
      elements += static_cast<double>(w.shape.elements());
    const bool inner = s.layer >= 0 && s.layer < static_cast<std::int32_t>(problem.model.layers.size());
    (inner ? layer : ends) = inner ? std::max(layer, elements) : ends + elements;
  }
  return {layer, ends};
}

/// One call after the other, and what is allocated after each.
class ReplayFsdpCalls : public testing::Test {
 protected:
  void begin(Problem problem, Plan plan) {
    problem_ = std::move(problem), plan_ = std::move(plan);
    program_ = lower(problem_, plan_, 0);
    fsdp_.emplace(program_, problem_, plan_, buffers_);
    last_ = static_cast<std::int32_t>(program_.slots.size()) - 1;
  }
  [[nodiscard]] const Block& block(std::int32_t slot) const {
    return program_.blocks[static_cast<std::size_t>(program_.slots[static_cast<std::size_t>(slot)].block)];
  }
  /// As they run: in one buffer that they arrive in, and each in its own; sizes here are whole units of 512 bytes.
  [[nodiscard]] std::int64_t weights(std::int32_t slot) const {
    return ReplayFsdp::whole(block(slot), problem_.runtime, plan_.parallelism).value;
  }
  /// The buffer that a unit's reduction reads, and what the reduction leaves.
  [[nodiscard]] std::int64_t copied(std::int32_t slot) const { return CachingAllocator::rounded(2 * weights(slot)); }
  [[nodiscard]] std::int64_t reduced(std::int32_t slot) const {
    return CachingAllocator::rounded(program_.slots[static_cast<std::size_t>(slot)].state.gradients.value);
  }
  [[nodiscard]] std::int64_t now() const { return buffers_.allocator().allocated().value; }
  void forward(std::int32_t slot) { fsdp_->unshard(slot, false), fsdp_->reshard(slot, false); }

  Problem problem_;
  Plan plan_;
  Program program_;
  ReplayBuffers buffers_{{.expandable_segments = true, .capacity = {}}};
  std::optional<ReplayFsdp> fsdp_;
  std::int32_t last_ = 0;
};

TEST_F(ReplayFsdpCalls, HoldAGatherInTheForwardPassUntilTheNextUnitIsCopiedOutAndTheLastUntilTheModelReturns) {
  const Problem problem = fsdp2("tiny-llama31.json", 16);
  begin(problem, cut(problem));
  fsdp_->unshard(0, false);
  EXPECT_EQ(now(), 2 * weights(0));
  fsdp_->reshard(0, false);
  EXPECT_EQ(now(), weights(0));  // the buffer that they arrived in
  fsdp_->unshard(1, false);
  EXPECT_EQ(now(), 2 * weights(1));
  fsdp_->reshard(1, false);
  for (std::int32_t slot = 2; slot <= last_; ++slot) forward(slot);
  EXPECT_EQ(now(), 2 * weights(last_));  // not resharded: the backward pass begins with it
  fsdp_->end_forward();
  EXPECT_EQ(now(), weights(last_));
}

TEST_F(ReplayFsdpCalls, HoldInTheBackwardPassAUnitItsReductionAndTheGatherOfTheUnitBefore) {
  const Problem problem = fsdp2("tiny-llama31.json", 16);
  begin(problem, cut(problem));
  for (std::int32_t slot = 0; slot <= last_; ++slot) forward(slot);
  fsdp_->end_forward();
  fsdp_->unshard(last_, true);  // there still; no gather ahead
  EXPECT_EQ(now(), weights(last_));
  fsdp_->reshard(last_, true);
  EXPECT_EQ(now(), 0);
  std::vector<ReplayBuffers::Buffer> whole{buffers_.take({weights(last_)})};
  fsdp_->reduce(last_, whole);
  EXPECT_TRUE(whole.empty());
  EXPECT_EQ(now(), copied(last_) + reduced(last_));  // bf16 ones are gone
  fsdp_->unshard(last_ - 1, true);                   // its own gather goes, the next one comes
  EXPECT_EQ(now(), copied(last_) + reduced(last_) + weights(last_ - 1) + weights(last_ - 2));
  fsdp_->reshard(last_ - 1, true);
  whole = {buffers_.take({weights(last_ - 1)})};
  fsdp_->reduce(last_ - 1, whole);
  EXPECT_EQ(now(), copied(last_ - 1) + reduced(last_ - 1) + reduced(last_) + weights(last_ - 2));
  fsdp_->end_backward();  // the stage's last reduction and what was gathered ahead
  EXPECT_EQ(now(), reduced(last_ - 1) + reduced(last_));
  fsdp_->drop_gradients();
  EXPECT_EQ(now(), 0);
}

TEST_F(ReplayFsdpCalls, LeaveExpertsThatNoDataRankCutsAlone) {
  const Problem problem = fsdp2("tiny-qwen3-moe.json", 16);
  Plan apart = cut(problem);
  apart.parallelism.ep = 2;
  begin(problem, apart);
  // 8 of 16 experts of three matrices of 2048 x 768, in bf16; with all 16 on a rank they are wrapped.
  const std::int64_t experts = 8LL * 3 * 2048 * 768;
  const Program whole = lower(problem, cut(problem), 0);
  const auto of = [&](const Block& b, const Parallelism& p) { return ReplayFsdp::whole(b, problem.runtime, p).value; };
  EXPECT_EQ(of(whole.blocks[static_cast<std::size_t>(whole.slots[1].block)], cut(problem).parallelism) -
                of(block(1), apart.parallelism),
            2 * 2 * experts);
  Parallelism sharded = apart.parallelism;
  sharded.expert_shard = 2;  // cut over ranks of FSDP too
  EXPECT_EQ(of(block(1), sharded) - of(block(1), apart.parallelism), 2 * experts);
  std::vector<ReplayBuffers::Buffer> none;
  fsdp_->reduce(1, none);
  const std::int64_t own = 4 * experts;  // fp32
  EXPECT_NEAR(static_cast<double>(now()), static_cast<double>(copied(1) + reduced(1)), 1024);
  EXPECT_GT(reduced(1), own);
  fsdp_->reduce(1, none);  // of the next micro-batch: added to what is there
  EXPECT_NEAR(static_cast<double>(now()), static_cast<double>(copied(1) + reduced(1)), 1024);
  // While the reduced part came to be a second time the experts' did not.
  EXPECT_NEAR(static_cast<double>(buffers_.allocator().peak_allocated().value),
              static_cast<double>(copied(1) + reduced(1) + (reduced(1) - own)), 2048);
}

// 8,192 tokens: 12 bytes for each of 128,256 logits are live in the loss's backward pass, where the head's bf16 weights
// (1.05 GB) are there once: the buffer that they arrived in went before the loss.
TEST(ReplayFsdp, HoldsTheHeadOnceWhileTheLossRuns) {
  Problem problem = fsdp2("tiny-llama31.json", 8192);
  problem.runtime.whole_logits = true, problem.runtime.fused_loss = false;
  problem.runtime.logit_bytes = 12, problem.runtime.logit_kept = 4;
  problem.runtime.kept["eager_cross_entropy"] = 1;
  Plan plan = cut(problem);
  plan.recompute = Recompute::full;
  const Program program = lower(problem, plan, 0);
  StateBytes state;
  for (const Slot& s : program.slots) state += s.state;
  const double tokens = 8192, hidden = 4096, vocabulary = 128256;
  const double head = 2 * vocabulary * hidden, loss = 12 * tokens * vocabulary, checkpoint = 2 * tokens * hidden;
  // In the second step; beside it a checkpoint a layer, what the last norm leaves, and little else.
  const double held = static_cast<double>((state.weights + state.optimizer).value) + head + loss;
  const double peak = static_cast<double>(replay(program, problem, plan).allocated.value);
  EXPECT_GT(peak, held + 4 * checkpoint);
  EXPECT_LT(peak, held + 4 * checkpoint + 0.5 * head);
}

// With next to no tokens the peak is weights and gradients: the cut states, and of the unit whose backward pass ends
// last (in the root's case embedding and head) bf16 weights, bf16 gradients and the fp32 buffer that the reduction
// reads.
TEST(ReplayFsdp, CopiesWeightsOutOfTheGatherAndGradientsIntoTheReduction) {
  Problem problem = fsdp2("tiny-llama31.json", 16);
  const Plan plan = cut(problem);
  const Program program = lower(problem, plan, 0);
  StateBytes state;
  for (const Slot& s : program.slots) state += s.state;
  const double held = static_cast<double>((state.weights + state.gradients + state.optimizer).value);
  const auto [layer, ends] = widest_layer_and_ends(program, problem);
  problem.runtime.kept["root_unit"] = 1;
  const double root = static_cast<double>(replay(program, problem, plan).allocated.value);
  EXPECT_NEAR(root, held + (2 + 2 + 4) * ends, 0.01 * root);
  problem.runtime.kept.erase("root_unit");
  const double apart = static_cast<double>(replay(program, problem, plan).allocated.value);
  EXPECT_LT(apart, root);
  EXPECT_GT(apart, held + 2 * layer);
}

}  // namespace
}  // namespace moeplan
