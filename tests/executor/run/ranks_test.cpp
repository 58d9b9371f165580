/// Many ranks are one: every parallelism gives the loss, the gradients, the norm and the weights of the one-rank run.

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

class ManyRanks : public testing::TestWithParam<ParityCase> {};

TEST_P(ManyRanks, DoWhatOneRankDoes) { expect_parity(GetParam()); }

constexpr const char *k3 = "kimi/kimi-k3.json", *qwen = "qwen/qwen3-30b-a3b.json";
INSTANTIATE_TEST_SUITE_P(
    Parallelisms, ManyRanks,
    testing::Values(
        ParityCase{"k3_ep2", k3, false, {.ep = 2, .dp_replicate = 2}},
        ParityCase{"k3_fsdp2", k3, false, {.dp_shard = 2}},
        ParityCase{"k3_ep4_fsdp4", k3, false, {.ep = 4, .dp_shard = 4}, Recompute::full, 2},
        ParityCase{
            "k3_ep2_fsdp4_expert_shard2", k3, true, {.ep = 2, .dp_shard = 4, .expert_shard = 2}, Recompute::selective},
        ParityCase{"k3_hsdp_2x2_ep2", k3, false, {.ep = 2, .dp_replicate = 2, .dp_shard = 2}},
        ParityCase{"k3_8_ranks", k3, false, {.ep = 4, .dp_shard = 8, .expert_shard = 2}, Recompute::full},
        ParityCase{"qwen_ep4", qwen, true, {.ep = 4, .dp_replicate = 4}},
        ParityCase{"qwen_fsdp4", qwen, true, {.dp_shard = 4}, Recompute::full},
        ParityCase{"qwen_fsdp2_whole_experts", qwen, true, {.dp_shard = 2, .expert_shard = 2}},
        ParityCase{"qwen_ep2_fsdp4_expert_shard2",
                   qwen,
                   true,
                   {.ep = 2, .dp_shard = 4, .expert_shard = 2},
                   Recompute::full,
                   2},
        ParityCase{"qwen_pp2", qwen, false, {.pp = 2}, Recompute::none, 4},
        ParityCase{"k3_pp2", k3, true, {.pp = 2}, Recompute::full, 3},
        ParityCase{"k3_pp4", k3, false, {.pp = 4}, Recompute::selective, 5},
        ParityCase{"k3_pp2_ep2_fsdp2", k3, false, {.pp = 2, .ep = 2, .dp_shard = 2}, Recompute::full, 3},
        ParityCase{"k3_zero_bubble_pp2_ep2",
                   k3,
                   true,
                   {.pp = 2, .ep = 2, .dp_replicate = 2},
                   Recompute::selective,
                   3,
                   Schedule::zero_bubble}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(ManyRanks, FollowTheOneRankCurve) {
  const Problem p = problem(shrunk(shipped(k3), 4), lora(6));
  TrainOptions options;
  options.learning_rate = 5e-3;
  options.steps = 100;
  options.walk.routed_bound = 8;
  const auto batches = data(p, 4, 8);
  const Plan q = on_ranks(p, {.ep = 4, .dp_shard = 8, .expert_shard = 2}, 1, Recompute::full);
  const Outcome one = alone(p, batches, options), many = run_plan(p, q, batches, options),
                again = run_plan(p, q, batches, options);
  for (std::size_t s = 0; s < batches.size(); ++s) {
    EXPECT_NEAR(one.steps[s].loss, many.steps[s].loss, 1e-4) << "step " << s;
    EXPECT_NEAR(one.steps[s].gradient_norm, many.steps[s].gradient_norm, 1e-3 * one.steps[s].gradient_norm)
        << "step " << s;
    EXPECT_EQ(many.steps[s].loss, again.steps[s].loss);
  }
  EXPECT_EQ(many.values, again.values) << "the same bits each time";
  EXPECT_EQ(many.gradients, again.gradients);
}

TEST(ManyRanks, PutOnTheNetworkWhatThePlannerPrices) {
  const Problem p = problem(shrunk(shipped(qwen), 2), full(8));
  const Plan q = on_ranks(p, {.ep = 2, .dp_replicate = 2, .dp_shard = 2, .expert_shard = 1}, 2);
  const Outcome run = run_plan(p, q, data(p, 1, 8), {.walk = {.routed_bound = 2}}, {}, CpuStorage::as_planned);
  const Program program = lower(p, q, 0);
  std::int64_t gathered = 0, reduced = 0, rows = 0, replicated = 0;
  for (const Instance& i : program.instances) {
    if (i.slot < 0) continue;
    const SlotSharding& s = program.slots[static_cast<std::size_t>(i.slot)].sharding;
    const Block& b = program.blocks[static_cast<std::size_t>(program.slots[static_cast<std::size_t>(i.slot)].block)];
    if (i.phase == Phase::gather) gathered += s.dense_gather.value;
    if (i.phase == Phase::reduce)
      reduced += s.dense_reduce.value, replicated += s.dense_reduce.value / 2 + s.expert_reduce.value;
    for (const BlockNode& n : i.phase == Phase::forward    ? b.forward
                              : i.phase == Phase::backward ? b.backward
                                                           : std::vector<BlockNode>{})
      if (const CommCall* c = std::get_if<CommCall>(&n.call); c && c->collective == Collective::dispatch)
        rows += c->payload.value;
  }
  std::int64_t exchanged = 0;
  for (const CommCounters& c : run.counted) {
    EXPECT_EQ(c[static_cast<std::size_t>(CommKind::all_gather)].payload, gathered);
    EXPECT_EQ(c[static_cast<std::size_t>(CommKind::reduce_scatter)].payload, reduced);
    EXPECT_EQ(c[static_cast<std::size_t>(CommKind::all_reduce)].payload, replicated);
    exchanged += c[static_cast<std::size_t>(CommKind::all_to_all)].payload;
  }
  EXPECT_EQ(exchanged, 2 * 4 * rows) << "over all ranks as many rows come back as went out";
  EXPECT_EQ(run.counted, run.predicted);
}

TEST(ManyRanks, IssueTheSameCallsWhateverTheRouting) {
  const Problem p = problem(shrunk(shipped(k3), 4), lora(6));
  const Plan q = on_ranks(p, {.ep = 4, .dp_shard = 4}, 2, Recompute::full);
  const TrainOptions options{.walk = {.routed_bound = 8}};
  const auto batches = data(p, 1, 8);
  auto ignored = batches;
  for (Batch& b : ignored[0]) std::fill(b.labels.begin(), b.labels.end(), -100);
  // All routers alike choose the lowest experts: most ranks' experts get no row.
  const Prepare lopsided = [](Trainer& t) {
    for (Parameter& each : t.parameters().all())
      if (each.name.ends_with("gate.weight") && each.cls == WeightClass::router)
        set_values(each, std::vector<float>(static_cast<std::size_t>(each.held_shape().elements()), 0.0f), t.backend());
  };
  const Outcome usual = run_plan(p, q, batches, options), silent = run_plan(p, q, ignored, options),
                skewed = run_plan(p, q, batches, options, lopsided);
  EXPECT_EQ(silent.steps[0].loss, 0);
  EXPECT_EQ(silent.steps[0].gradient_norm, 0);
  const auto& counts = skewed.steps[0].routing.back().counts;
  EXPECT_EQ(counts.back(), 0);
  EXPECT_NE(usual.steps[0].routing.back().counts, counts);
  EXPECT_EQ(usual.hashes, silent.hashes);
  EXPECT_EQ(usual.hashes, skewed.hashes);
  EXPECT_NEAR(skewed.steps[0].loss, alone(p, batches, options, lopsided).steps[0].loss, 1e-5);
  EXPECT_EQ(skewed.counted, skewed.predicted);
}

}  // namespace
}  // namespace moeplan
