/// The replay of a program's buffers: what is allocated agrees with the walk over lifetimes, and reserved holds it.

#include "sim/memory/replay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "core/configs.hpp"
#include "sim/memory/memory.hpp"
#include "sim/memory/replay_loss.hpp"
#include "sim/program/architectures/architecture.hpp"

namespace moeplan {
namespace {

Problem tiny(bool sharded_optimizer) {
  const std::filesystem::path configs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";
  Problem p;
  p.model = import_model_file(configs / "models" / "tiny" / "tiny-llama31.json");
  p.cluster = load_cluster(configs, "8xh100");
  for (Tuning Workload::*w : {&Workload::attention, &Workload::dense, &Workload::embedding, &Workload::head,
                              &Workload::norm, &Workload::other})
    p.workload.*w = Tuning{.training = Training::full};
  p.workload.sequence_length = 4096;
  if (sharded_optimizer) p.runtime.traffic["accumulate"] = 0;
  p.runtime.compute_copy = p.runtime.distributed_optimizer = p.runtime.reduce_once = sharded_optimizer;
  return p;
}

Plan plan_of(const Problem& p, std::int64_t micro_batches) {
  Plan plan;
  plan.micro_batches = micro_batches;
  plan.stage_layers = {static_cast<std::int64_t>(p.model.layers.size())};
  plan.recompute = Recompute::none;
  return plan;
}

TEST(Replay, AllocatesWhatTheWalkOverLifetimesFinds) {
  for (const bool sharded : {false, true}) {
    const Problem problem = tiny(sharded);
    const Plan plan = plan_of(problem, 2);
    const Program program = lower(problem, plan, 0);
    MemoryBreakdown walked = memory(program, problem, plan);
    const double outside =
        static_cast<double>((walked[MemoryCategory::runtime_context] + walked[MemoryCategory::communication] +
                             walked[MemoryCategory::allocator_reserve])
                                .value);
    const double expected = static_cast<double>(walked.peak().value) - outside;
    const ReplayedPeak peak = replay(program, problem, plan);
    EXPECT_NEAR(static_cast<double>(peak.allocated.value), expected, (sharded ? 0.02 : 0.08) * expected);
    EXPECT_GE(peak.reserved, peak.allocated);
    EXPECT_LT(static_cast<double>(peak.reserved.value), 1.5 * static_cast<double>(peak.allocated.value));
  }
}

TEST(Replay, DoesNotGrowWithMoreMicroBatchesOfOneStage) {
  const Problem problem = tiny(true);
  const Plan four = plan_of(problem, 4), forty = plan_of(problem, 40);
  EXPECT_EQ(replay(lower(problem, four, 0), problem, four).reserved,
            replay(lower(problem, forty, 0), problem, forty).reserved);
}

TEST(Replay, ReservesLessWithExpandableSegments) {
  const Problem problem = tiny(true);
  const Plan plan = plan_of(problem, 2);
  const Program program = lower(problem, plan, 0);
  EXPECT_LE(replay(program, problem, plan, {.expandable_segments = true, .capacity = {}}).reserved,
            replay(program, problem, plan).reserved + Bytes{40 << 20});
}

TEST(Replay, HoldsCheckpointsAndTheirGradientsToTheEndOfTheBackwardPassWhereHooksDo) {
  Problem problem = tiny(false);
  for (Tuning Workload::*w : {&Workload::attention, &Workload::dense, &Workload::embedding, &Workload::head,
                              &Workload::norm, &Workload::other})
    problem.workload.*w = Tuning{};
  problem.workload.attention = Tuning{.training = Training::lora, .rank = 8, .alpha = 8.0};
  Plan plan = plan_of(problem, 2);
  plan.recompute = Recompute::full;
  const Program program = lower(problem, plan, 0);
  const std::int64_t without = replay(program, problem, plan).allocated.value;
  problem.runtime.kept["held_checkpoint"] = 1;
  const std::int64_t with = replay(program, problem, plan).allocated.value;
  // A layer gives its checkpoint back after its backward pass; held, it and its gradient stay, in bf16 both.
  const auto layers = static_cast<std::int64_t>(problem.model.layers.size());
  const std::int64_t stream = 2 * problem.workload.sequence_length * problem.model.hidden;
  EXPECT_GE(with - without, (layers - 1) * stream);
  EXPECT_LE(with - without, 2 * layers * stream);
}

// Stage 0 of two has two micro-batches under way: the output of each is there beside what the next layer would keep.
TEST(Replay, HoldsAStagesOutputsWherePipelinesDo) {
  Problem problem = tiny(true);
  Plan plan = plan_of(problem, 4);
  plan.parallelism.pp = 2;
  plan.stage_layers = {2, 2};
  const Program program = lower(problem, plan, 0);
  const std::int64_t without = replay(program, problem, plan).allocated.value;
  problem.runtime.kept["stage_outputs"] = 1;
  const std::int64_t stream = 2 * problem.workload.sequence_length * problem.model.hidden;
  EXPECT_EQ(replay(program, problem, plan).allocated.value - without, 2 * stream);
}

TEST(Replay, HoldsNarrowGradientsBesideTheSumsOfAFlatBuffer) {
  Problem problem = tiny(true);
  const Plan plan = plan_of(problem, 2);
  const Program program = lower(problem, plan, 0);
  const std::int64_t without = replay(program, problem, plan).allocated.value;
  double elements = 0;
  for (const Slot& s : program.slots) elements += static_cast<double>(s.state.gradients.value) / 4;
  problem.runtime.kept["narrow_gradients"] = 2;
  EXPECT_NEAR(static_cast<double>(replay(program, problem, plan).allocated.value - without), 2 * elements, 512);
}

// Pairs of rank 8 in fp32, without FSDP: three more of each, and no gradients or moments for them.
TEST(Replay, AllocatesAdaptersThatAreNotTrained) {
  Problem problem = tiny(false);
  for (Tuning Workload::*w : {&Workload::attention, &Workload::dense, &Workload::embedding, &Workload::head,
                              &Workload::norm, &Workload::other})
    problem.workload.*w = Tuning{};
  problem.workload.attention = Tuning{.training = Training::lora, .rank = 8, .alpha = 8.0};
  const Plan plan = plan_of(problem, 1);
  const Program program = lower(problem, plan, 0);
  const std::int64_t without = replay(program, problem, plan).allocated.value;
  std::int64_t adapters = 0;
  for (const Slot& s : program.slots) adapters += s.state.adapters.value;
  problem.runtime.kept["adapters"] = 4;
  ASSERT_GT(adapters, 0);
  EXPECT_NEAR(static_cast<double>(replay(program, problem, plan).allocated.value - without),
              3.0 * static_cast<double>(adapters), 512.0 * static_cast<double>(program.slots.size()));
}

/// What two micro-batches of a loss over 2^15 x 2^13 logits allocate and reserve at most, in bytes a logit.
std::pair<double, double> loss_bytes(const Runtime& runtime) {
  const op::CrossEntropy loss{.tokens = 1 << 15, .hidden = 64, .vocabulary = 1 << 13};
  const BlockNode forward{.call = OpCall{loss, Pass::forward, {}}, .reads = {}, .writes = {}, .weights = {}},
      backward{.call = OpCall{loss, Pass::backward, {}}, .reads = {}, .writes = {}, .weights = {}};
  ReplayBuffers buffers({.expandable_segments = true, .capacity = {}});
  ReplayLoss played(runtime, buffers);
  EXPECT_TRUE(played.plays(forward));
  for (std::int32_t micro_batch = 0; micro_batch < 2; ++micro_batch)
    for (const BlockNode* node : {&forward, &backward}) played.begin(*node, micro_batch), played.end(*node);
  const double logits = static_cast<double>(loss.tokens) * static_cast<double>(loss.vocabulary);
  return {static_cast<double>(buffers.allocator().peak_allocated().value) / logits,
          static_cast<double>(buffers.allocator().peak_reserved().value) / logits};
}

// 12 bytes a logit are live at once, 14 are reserved: what logits and copy leave holds one of the two gradients that
// follow and a part of the other.
TEST(ReplayLoss, LeavesAHoleThatASumAtThePeakDoesNotShow) {
  Runtime runtime;
  runtime.whole_logits = true;
  runtime.kept["eager_cross_entropy"] = 1;
  const auto [allocated, reserved] = loss_bytes(runtime);
  EXPECT_NEAR(allocated, 12, 1e-6);
  EXPECT_NEAR(reserved, 14, 0.1);
  runtime.kept["held_logits"] = 1;  // 4 more: the copy stays
  EXPECT_NEAR(loss_bytes(runtime).first, 16, 1e-6);
  runtime.kept = {{"compiled_cross_entropy", 1}};
  EXPECT_NEAR(loss_bytes(runtime).first, 4, 1e-6);
}

// 2,048 of 8,192 logits a token at a time, and 22 bytes each: a new piece's logits and copy beside the old one's
// probabilities and gradient, their difference from the maximum, and the new probabilities; and a frozen head's
// gradient.
TEST(ReplayLoss, HoldsAPieceOfLogitsWithTheOneBeforeIt) {
  Runtime runtime;
  runtime.kept["chunked_head"] = 2;
  const double head = 2.0 * 64 / (1 << 15);
  EXPECT_NEAR(loss_bytes(runtime).first, 22.0 / 4 + head, 1e-6);
}

}  // namespace
}  // namespace moeplan
