/// A plan under drawn expert loads.

#include "planner/load_draws.hpp"

#include <gtest/gtest.h>

#include "core/configs.hpp"
#include "core/error.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"
#include "planner/space.hpp"

namespace moeplan {
namespace {

const std::filesystem::path kConfigs = MOEPLAN_SOURCE "/configs";

Problem problem(const std::string& load, const std::string& model = "deepseek-v3", std::int64_t gpus = 128) {
  ProblemRequest r;
  r.model = model;
  r.device = "h200";
  r.gpus = gpus;
  r.load = load;
  return make_problem(kConfigs, r);
}

Plan plan_of(const Problem& p, Schedule schedule = Schedule::one_forward_one_backward) {
  Plan plan;
  plan.schedule = schedule;
  plan.parallelism = {.pp = 4, .ep = 32, .dp_replicate = 1, .dp_shard = static_cast<int>(p.cluster.devices() / 4)};
  plan.micro_batches = 4;
  plan.stage_layers = even_stages(static_cast<std::int64_t>(p.model.layers.size()), 4);
  return plan;
}

// Forced balance has no noise: the draws are the forecast, in time and in memory.
TEST(LoadDraws, UnderForcedBalanceTheyAreTheForecast) {
  const Problem p = problem("uniform");
  for (const Schedule schedule : {Schedule::one_forward_one_backward, Schedule::zero_bubble}) {
    const Plan plan = plan_of(p, schedule);
    const LoadDraws d = draw_load(p, plan, {.draws = 2});
    const Forecast f = forecast(p, plan);
    EXPECT_NEAR(d.step_at(0.5), f.step.value, 1e-9 * f.step.value);
    EXPECT_NEAR(d.peak_at(0.5), static_cast<double>(f.memory.peak().value), 64);
    EXPECT_DOUBLE_EQ(d.busiest, 1);
  }
}

TEST(LoadDraws, AreTheSameForTheSameSeedAndOrderedByQuantile) {
  const Problem p = problem("log-normal-v3");
  const Plan plan = plan_of(p);
  const LoadDraws a = draw_load(p, plan, {.draws = 8}), b = draw_load(p, plan, {.draws = 8});
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.peak, b.peak);
  EXPECT_LT(a.step_at(0.5), a.step_at(0.95));
  Problem other = p;
  other.load.seed += 1;
  EXPECT_NE(draw_load(other, plan, {.draws = 8}).step, a.step);
}

// EPLB on the recorded DeepSeek-V3 counts (comm-and-load c.1): contiguous 2.29 at 32 ranks, re-ordered 1.14, with 32 more slots 1.007;
// a micro-batch of 32 sequences adds its own noise of a few per cent.
TEST(LoadDraws, PlacementAndReplicasTakeTheHotRanksAway) {
  const Problem p = problem("deepseek-v3-prefill-in1024");
  const Plan plan = plan_of(p);
  const LoadDraws plain = draw_load(p, plan, {.draws = 2}), moved = draw_load(p, plan, {.draws = 2, .balanced = true}),
                  copied = draw_load(p, plan, {.draws = 2, .balanced = true, .extra_slots = 32});
  EXPECT_NEAR(plain.busiest, 2.29, 0.10);
  EXPECT_NEAR(moved.busiest, 1.14, 0.06);
  EXPECT_LT(copied.busiest, 1.09);
  EXPECT_LT(moved.step_at(0.5), plain.step_at(0.5));
  EXPECT_LE(copied.step_at(0.5), moved.step_at(0.5));
  // Rows of placed experts pass through the exchange's buffer twice, which takes more here than the hot ranks give back.
  Problem apart = p;
  apart.runtime.staged = false;
  EXPECT_LT(draw_load(apart, plan, {.draws = 2, .balanced = true}).peak_at(0.5), draw_load(apart, plan, {.draws = 2}).peak_at(0.5));
  EXPECT_EQ(moved.replicas.value, 0);
  EXPECT_GT(copied.replicas.value, 0);
}

// A placement made on 1,024-token prefill that serves 4,096 tokens: 1.23 at 32 ranks with 32 more slots (c.1, staleness); re-placed it is even again.
TEST(LoadDraws, AStalePlacementCostsTimeAndRePlacementWinsItBack) {
  const Problem p = problem("deepseek-v3-prefill-in4096");
  const Plan plan = plan_of(p);
  const LoadDraws stale = draw_load(p, plan, {.draws = 2, .balanced = true, .extra_slots = 32, .placed_on = load_load(kConfigs, "deepseek-v3-prefill-in1024")}),
                  fresh = draw_load(p, plan, {.draws = 2, .balanced = true, .extra_slots = 32});
  EXPECT_NEAR(stale.busiest, 1.23, 0.06);
  EXPECT_LT(fresh.busiest, 1.09);
  EXPECT_LT(fresh.step_at(0.5), stale.step_at(0.5));
}

// On the V3 counts a capacity factor of 1.25 drops a fifth (c.2: 20 %) where a source's batch is large; one sequence alone, with a mix
// of its own, drops more. The factor also bounds the busiest rank.
TEST(LoadDraws, ACapacityDropsTokensAndBoundsTheRanks) {
  const Problem p = problem("deepseek-v3-prefill-in1024");
  Plan plan = plan_of(p);
  const LoadDraws one = draw_load(p, plan, {.draws = 2, .capacity_factor = 1.25});
  plan.micro_batch = 32;
  const LoadDraws capped = draw_load(p, plan, {.draws = 2, .capacity_factor = 1.25}), free = draw_load(p, plan, {.draws = 2});
  EXPECT_NEAR(capped.dropped, 0.20, 0.015);
  EXPECT_GT(one.dropped, capped.dropped + 0.03);
  EXPECT_LE(capped.busiest, 1.25);
  EXPECT_EQ(free.dropped, 0);
  EXPECT_LT(capped.step_at(0.5), free.step_at(0.5));
  EXPECT_LT(capped.peak_at(0.95), free.peak_at(0.95));
}

// What a plan says of its experts is drawn as the same said in options.
TEST(LoadDraws, FollowThePlansCapacityReplicasAndPlacement) {
  const Problem p = problem("deepseek-v3-prefill-in1024");
  const Plan plain = plan_of(p);
  Plan plan = plain;
  plan.experts.placement = ExpertPlacement::balanced;
  const LoadDraws said = draw_load(p, plain, {.draws = 2, .balanced = true}), meant = draw_load(p, plan, {.draws = 2});
  EXPECT_EQ(meant.step, said.step);
  EXPECT_EQ(meant.peak, said.peak);
  plan.experts.replicas = 32;
  const LoadDraws copies = draw_load(p, plain, {.draws = 2, .balanced = true, .extra_slots = 32}), held = draw_load(p, plan, {.draws = 2});
  EXPECT_EQ(held.busiest, copies.busiest);
  EXPECT_EQ(held.served.replicas, 32);
  EXPECT_NEAR(held.peak_at(0.5), copies.peak_at(0.5), 0.002 * copies.peak_at(0.5));   // lowered with their slots, or added to states
  plan = plain;
  plan.experts.capacity_factor = 1.25;
  const LoadDraws cut = draw_load(p, plan, {.draws = 2});
  EXPECT_EQ(cut.dropped, draw_load(p, plain, {.draws = 2, .capacity_factor = 1.25}).dropped);
  EXPECT_LE(cut.busiest, 1.25);
  plan.experts.overflow = Overflow::reroute;
  const LoadDraws moved = draw_load(p, plan, {.draws = 2});
  EXPECT_EQ(moved.dropped, 0);
  EXPECT_GE(moved.busiest, cut.busiest);
  plan.experts.pad = true;
  EXPECT_NEAR(draw_load(p, plan, {.draws = 2}).busiest, 1.25, 0.01);
}

// No noise, a capacity: receive buffers take it in full, as in the forecast.
TEST(LoadDraws, UnderForcedBalanceBuffersTakeTheCapacity) {
  const Problem p = problem("uniform");
  Plan plan = plan_of(p);
  plan.experts.capacity_factor = 1.5;
  const LoadDraws d = draw_load(p, plan, {.draws = 2});
  const Forecast f = forecast(p, plan);
  EXPECT_NEAR(d.step_at(0.5), f.step.value, 1e-9 * f.step.value);
  EXPECT_NEAR(d.peak_at(0.5), static_cast<double>(f.memory.peak().value), 64);
}

TEST(LoadDraws, SayHowOftenMemoryRunsOut) {
  Problem p = problem("log-normal-v3");
  const Plan plan = plan_of(p);
  const LoadDraws d = draw_load(p, plan, {.draws = 8});
  p.cluster.device.memory = {static_cast<std::int64_t>(d.peak_at(0.5))};
  const double some = draw_load(p, plan, {.draws = 8}).out_of_memory;
  EXPECT_GT(some, 0);
  EXPECT_LT(some, 1);
  p.cluster.device.memory = {static_cast<std::int64_t>(d.peak_at(1.0)) + 1};
  EXPECT_EQ(draw_load(p, plan, {.draws = 8}).out_of_memory, 0);
}

TEST(LoadDraws, RefuseLoadsAndPlacementsThatDoNotFit) {
  Problem p = problem("log-normal-v3");
  const Plan plan = plan_of(p);
  EXPECT_THROW((void)draw_load(p, plan, {.draws = 0}), InputError);
  EXPECT_THROW((void)draw_load(p, plan, {.draws = 1, .extra_slots = 32}), InputError);
  EXPECT_THROW((void)draw_load(p, plan, {.draws = 1, .balanced = true, .extra_slots = 5}), InputError);
  for (const std::vector<std::vector<double>>& counts : {std::vector<std::vector<double>>{}, {{1, 2, 3}}, {std::vector<double>(256, 0.0)}, {std::vector<double>(256, -1.0)}}) {
    p.load.distribution = TraceLoad{counts};
    EXPECT_THROW((void)draw_load(p, plan, {.draws = 1}), InputError);
  }
}

}  // namespace
}  // namespace moeplan
