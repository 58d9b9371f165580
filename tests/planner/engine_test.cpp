/// The simulator's engine against the planner's closed form: two roads to a step time.

#include <gtest/gtest.h>

#include <map>

#include "planner/prices.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"
#include "planner/space.hpp"
#include "sim/engine/costs.hpp"
#include "sim/engine/engine.hpp"
#include "sim/engine/memory_snapshot.hpp"

namespace moeplan {
namespace {

Problem problem(const std::string& model, std::int64_t gpus, Training method = Training::lora) {
  ProblemRequest r;
  r.model = model;
  r.device = "h200";
  r.gpus = gpus;
  r.method = method;
  r.load = "uniform";
  return make_problem(MOEPLAN_SOURCE "/configs", r);
}

Plan a_plan(const Problem& p, Parallelism parallelism, std::int64_t micro_batches = 4) {
  Plan plan;
  plan.parallelism = parallelism;
  plan.micro_batches = micro_batches;
  plan.stage_layers = even_stages(static_cast<std::int64_t>(p.model.layers.size()), parallelism.pp);
  plan.recompute = Recompute::full;
  return plan;
}

struct Simulated {
  std::vector<Program> stages;
  Job job;
  Played played;
  [[nodiscard]] double seconds() const { return to_seconds(played.step).value; }
};

Simulated simulated(const Problem& p, const Plan& plan, bool every_rank = false, const ClusterSpec* cluster = nullptr) {
  const Prices prices = prices_of(p, plan);
  const Links links(p.cluster, p.runtime, {}, p.profile);
  const Costs costs = model_costs(prices, links, plan.parallelism);
  Simulated out;
  for (int s = 0; s < plan.parallelism.pp; ++s) out.stages.push_back(lower(p, plan, s * plan.parallelism.stage_ranks()));
  const auto ranks = every_rank ? unfolded(out.stages, plan.parallelism, costs) : folded(out.stages, plan.parallelism, costs);
  out.job = make_job(ranks, plan.parallelism);
  out.played = play(out.job, {.cluster = cluster});
  return out;
}

/// Each duration is rounded to a picosecond: events x half a picosecond apart at most.
double rounding(const Simulated& s) { return 0.5e-12 * static_cast<double>(s.played.events) + 1e-12 * s.seconds(); }

class NoContention : public testing::TestWithParam<std::tuple<const char*, int, int>> {};

// Whole weights on every rank, so nothing is gathered: stages, micro-batches and expert exchanges alone. Equal to the picosecond.
TEST_P(NoContention, TheEngineEqualsTheClosedForm) {
  const auto& [model, pp, micro_batches] = GetParam();
  const Problem p = problem(model, 8 * pp);
  const Plan plan = a_plan(p, {.pp = pp, .ep = 8, .dp_replicate = 8, .dp_shard = 1}, micro_batches);
  const Simulated s = simulated(p, plan);
  EXPECT_NEAR(s.seconds(), forecast(p, plan, false, false).step.value, rounding(s));
}
INSTANTIATE_TEST_SUITE_P(Models, NoContention,
                         testing::Combine(testing::Values("qwen3-30b-a3b", "deepseek-v2-lite"), testing::Values(1, 2, 4), testing::Values(1, 3, 8)));

// With adapters the embedding has no backward pass, so without prefetch nothing asks for its weights there.
TEST(Prefetch, NothingWaitsForTheGatherOfAFrozenEmbedding) {
  const Problem p = problem("qwen3-30b-a3b", 16);
  Plan plan = a_plan(p, {.ep = 8, .dp_replicate = 2, .dp_shard = 8, .expert_shard = 2});
  for (const std::int64_t ahead : {0, 1, 2}) {
    plan.prefetch = ahead;
    const Simulated s = simulated(p, plan);
    EXPECT_NEAR(s.seconds(), forecast(p, plan, false, false).step.value, rounding(s)) << ahead;
  }
}

class Sharded : public testing::TestWithParam<std::tuple<const char*, int, Training>> {};

// FSDP gathers run under the blocks before them, reductions under the blocks after, on one stage and on several.
TEST_P(Sharded, TheEngineEqualsTheClosedForm) {
  const auto& [model, pp, method] = GetParam();
  const Problem p = problem(model, 16 * pp, method);
  const Plan plan = a_plan(p, {.pp = pp, .ep = 8, .dp_replicate = 2, .dp_shard = 8, .expert_shard = 2});
  const Simulated s = simulated(p, plan);
  EXPECT_NEAR(s.seconds(), forecast(p, plan, false, false).step.value, rounding(s));
}
INSTANTIATE_TEST_SUITE_P(Models, Sharded,
                         testing::Combine(testing::Values("qwen3-30b-a3b", "deepseek-v3"), testing::Values(1, 2, 4), testing::Values(Training::lora, Training::full)));

// Without resharding a backward pass after a forward pass finds its weights, one after another backward pass gathers them anew.
TEST(Sharded, TheEngineEqualsTheClosedFormWithoutResharding) {
  for (const int pp : {1, 2, 4}) {
    const Problem p = problem("deepseek-v3", 16 * pp);
    Plan plan = a_plan(p, {.pp = pp, .ep = 8, .dp_replicate = 2, .dp_shard = 8, .expert_shard = 2});
    plan.reshard_after_forward = false;
    const Simulated s = simulated(p, plan);
    EXPECT_NEAR(s.seconds(), forecast(p, plan, false, false).step.value, rounding(s)) << pp;
  }
}

// K3's stages hand over more stored residual blocks the later they come. The closed form takes the largest message for all: it is
// above the engine by less than a thousandth.
TEST(Sharded, UnequalMessagesKeepTheClosedFormAboveTheEngine) {
  const Problem p = problem("kimi-k3", 64);
  const Plan plan = a_plan(p, {.pp = 4, .ep = 8, .dp_replicate = 2, .dp_shard = 8, .expert_shard = 2});
  const double engine = simulated(p, plan).seconds(), closed = forecast(p, plan, false, false).step.value;
  EXPECT_LE(engine, closed);
  EXPECT_GT(engine, closed * 0.999);
}

TEST(Folding, EqualRanksPlayedOneByOneTakeTheTimeOfTheirRepresentatives) {
  const Problem p = problem("qwen3-30b-a3b", 16);
  const Plan plan = a_plan(p, {.pp = 2, .ep = 8, .dp_replicate = 2, .dp_shard = 4});
  const Simulated one = simulated(p, plan), all = simulated(p, plan, true);
  EXPECT_EQ(one.played.step, all.played.step);
  EXPECT_EQ(all.job.ranks.size(), 16u);
  for (std::size_t r = 0; r < all.job.ranks.size(); ++r) EXPECT_EQ(all.played.tasks[r], one.played.tasks[r / 8]);
}

// The order of everything is fixed, so a step grows with its calls' times, and no call takes longer than its isolated time over the least
// share of its speed that any had: alone <= shared <= alone / slowest.
TEST(Contention, StretchesAStepByNoMoreThanTheSlowestTransfer) {
  const Problem p = problem("qwen3-30b-a3b", 32);
  const Plan plan = a_plan(p, {.pp = 2, .ep = 16, .dp_replicate = 1, .dp_shard = 16});
  const Simulated alone = simulated(p, plan), shared = simulated(p, plan, false, &p.cluster);
  EXPECT_EQ(alone.played.slowest, 1);
  EXPECT_GT(shared.played.slowest, 0);
  EXPECT_LE(shared.played.slowest, 1);
  EXPECT_GE(shared.seconds(), alone.seconds());
  EXPECT_LE(shared.seconds(), alone.seconds() / shared.played.slowest + rounding(shared));
}

// With all interference the overlapped step is longer, by less than the multiprocessors that exchanges hold and their own share.
TEST(Interference, MakesAnOverlappedStepLonger) {
  const Problem p = problem("deepseek-v2-lite", 16, Training::full);
  Plan plan = a_plan(p, {.pp = 1, .ep = 16, .dp_replicate = 16, .dp_shard = 1}, 8);
  plan.schedule = Schedule::expert_overlap;
  plan.recompute = Recompute::selective;
  const Prices prices = prices_of(p, plan);
  const Links links(p.cluster, p.runtime, {}, p.profile);
  const Costs costs = interfering_costs(prices, links, plan.parallelism, p.cluster.device);
  const std::vector<Program> stages{lower(p, plan, 0)};
  const Job job = make_job(folded(stages, plan.parallelism, costs), plan.parallelism);
  const double alone = to_seconds(play(job).step).value, beside = to_seconds(play(job, {.interference = true}).step).value;
  EXPECT_GT(beside, alone);
  EXPECT_LT(beside, 2 * alone);
}

// The timeline's peak is the one that walking the program's lifetimes finds, stage by stage.
TEST(Memory, TheTimelinePeaksWhereTheWalkOverTheProgramDoes) {
  const Problem p = problem("qwen3-30b-a3b", 32);
  const Plan plan = a_plan(p, {.pp = 2, .ep = 8, .dp_replicate = 2, .dp_shard = 8, .expert_shard = 2});
  const Simulated s = simulated(p, plan);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    const MemoryTimeline t = memory_timeline(s.stages[stage], p, plan, s.job, s.played, static_cast<std::int32_t>(stage));
    const MemoryBreakdown walk = memory(s.stages[stage], p, plan);
    EXPECT_EQ(t.peak.at_peak, walk.at_peak);
    EXPECT_GT(t.peak_at, 0);
    EXPECT_LT(t.peak_at, s.played.step);
    for (const MemoryBlock& b : t.blocks) EXPECT_LE(b.from, b.until);
  }
}

TEST(Memory, TheSnapshotFreesWhatItAllocates) {
  const Problem p = problem("qwen3-30b-a3b", 8);
  const Plan plan = a_plan(p, {.pp = 1, .ep = 8, .dp_replicate = 1, .dp_shard = 8}, 1);
  const Simulated s = simulated(p, plan);
  const std::vector<MemoryTimeline> ranks{memory_timeline(s.stages[0], p, plan, s.job, s.played, 0)};
  const Json snapshot = parse_json(memory_snapshot(ranks), "snapshot");
  std::map<std::int64_t, std::int64_t> live;
  for (const Json& e : snapshot.at("device_traces").at(0)) {
    const auto at = e.at("addr").get<std::int64_t>();
    if (e.at("action") == "alloc") {
      EXPECT_FALSE(live.count(at));
      live[at] = e.at("size").get<std::int64_t>();
    } else {
      ASSERT_TRUE(live.count(at));
      EXPECT_EQ(live[at], e.at("size").get<std::int64_t>());
      live.erase(at);
    }
  }
  EXPECT_TRUE(live.empty());
}

}  // namespace
}  // namespace moeplan
