/// Exchanges, weights and compute on the same links and multiprocessors: the closed form against the engine, with contention and without.

#include <gtest/gtest.h>

#include <random>

#include "planner/planner.hpp"
#include "planner/prices.hpp"
#include "planner/problem.hpp"
#include "planner/space.hpp"
#include "sim/cost/contention.hpp"
#include "sim/engine/costs.hpp"
#include "sim/engine/engine.hpp"
#include "sim/engine/network.hpp"

namespace moeplan {
namespace {

Problem problem(const std::string& model, std::int64_t gpus, Training method) {
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

double engine(const Problem& p, const Plan& plan, bool contention) {
  const Prices prices = prices_of(p, plan);
  const Links links(p.cluster, p.runtime, {}, p.profile);
  const Costs costs = model_costs(prices, links, plan.parallelism);
  std::vector<Program> stages;
  for (int s = 0; s < plan.parallelism.pp; ++s) stages.push_back(lower(p, plan, s * plan.parallelism.stage_ranks()));
  return to_seconds(play(make_job(folded(stages, plan.parallelism, costs), plan.parallelism), {.cluster = contention ? &p.cluster : nullptr, .interference = contention}).step).value;
}

// Two flows of random sizes over the ports of a device: the speeds are those of the engine's network.
TEST(Ports, TwoTransfersShareThemAsFlowsOfTheEngineDo) {
  const Problem p = problem("qwen3-30b-a3b", 32, Training::lora);
  const Ports ports(p.cluster);
  std::mt19937_64 dice(7);
  const auto uniform = [&](double most) { return most * static_cast<double>(dice() >> 11) / 9007199254740992.0; };
  int slowed = 0;
  for (int round = 0; round < 2000; ++round) {
    Transfer a{.seconds = 1}, b{.seconds = 1};
    for (std::size_t t = 0; t < p.cluster.tiers.size(); ++t) {
      const double rate = p.cluster.tiers[t].bandwidth.value * std::max(p.cluster.tiers[t].efficiency, p.cluster.tiers[t].all_to_all_efficiency);
      a.bytes[t] = round % 3 == 0 ? 0 : uniform(rate * 1.1), b.bytes[t] = round % 5 == 0 ? 0 : uniform(rate * 1.1);
    }
    FairShare links;
    const std::vector<std::int64_t> device{0};
    const Network network(p.cluster, device, links);
    const auto first = links.start(network.collective(0, a.bytes, a.seconds)), second = links.start(network.collective(0, b.bytes, b.seconds));
    const Ports::Speeds speeds = ports.beside(a, b);
    ASSERT_NEAR(speeds.first, links.speed(first), 1e-9) << round;
    ASSERT_NEAR(speeds.second, links.speed(second), 1e-9) << round;
    slowed += speeds.first < 1 || speeds.second < 1;
  }
  EXPECT_GT(slowed, 200);
}

// One exchange that fills a NIC for 1 of a pass's 4 s, a gather that would fill it for 2: half a second of exchange falls beside the gather and takes a
// whole one, so both are over after 4.5 s. A gather of 8 s waits for the exchange as long as it for the gather: 8 + 1.
TEST(Delay, IsWhatMeetsTimesWhatSharingCosts) {
  const Problem p = problem("qwen3-30b-a3b", 32, Training::lora);
  const Ports ports(p.cluster);
  const double nic = p.cluster.tiers[1].bandwidth.value * std::max(p.cluster.tiers[1].efficiency, p.cluster.tiers[1].all_to_all_efficiency);
  const std::vector<Transfer> exchange{{1, {0, nic}}};
  EXPECT_NEAR(delay(4, 2, crossing(ports, exchange, {2, {0, 2 * nic}})), 0.5, 1e-12);
  EXPECT_NEAR(delay(4, 8, crossing(ports, exchange, {8, {0, 8 * nic}})), 1, 1e-12);
  EXPECT_EQ(delay(4, 2, crossing(ports, exchange, {2, {0, 0.0}})), 0);
  EXPECT_EQ(delay(4, 2, crossing(ports, std::vector<Transfer>{{1, {0, nic / 2}}}, {2, {0, nic}})), 0);   // both half a NIC
}

// A pass that only computes for c beside a gather that holds a quarter of the multiprocessors for l: c + l / 4 while the gather is done first, l where it is not. Half
// of it an exchange that needs none: an eighth. Nothing held, nothing lost.
TEST(Delay, ACallThatHoldsMultiprocessorsTakesItsShareOfTheComputeBesideIt) {
  const Problem p = problem("qwen3-30b-a3b", 32, Training::lora);
  const Ports ports(p.cluster);
  const auto of = [&](double computed, double pass, Transfer lane) { return delay(pass, lane.seconds, crossing(ports, std::vector<Transfer>{{.seconds = computed, .computes = true}}, lane)); };
  EXPECT_NEAR(of(4, 4, {.seconds = 2, .lent = 0.25}), 0.5, 1e-12);
  EXPECT_NEAR(of(4, 4, {.seconds = 5, .lent = 0.25}), 5.25 - 5, 1e-12);
  EXPECT_NEAR(of(4, 4, {.seconds = 16.0 / 3, .lent = 0.25}), 0, 1e-12);
  EXPECT_EQ(of(4, 4, {.seconds = 8, .lent = 0.25}), 0);
  EXPECT_EQ(of(4, 4, {.seconds = 2}), 0);
  // 3 of 6 s compute: a second of the pass takes 1 + (1 / 3) / 2, of which 2 s of gather see 12 / 7; it ends 2 / 7 later.
  EXPECT_NEAR(of(3, 6, {.seconds = 2, .lent = 0.25}), 2.0 / 7, 1e-12);
}

// By hand: c = 100 us of compute beside an exchange of 50 us that holds m = 32 of 132 multiprocessors end after c + 50 m.
TEST(BlockTime, ComputeBesideAnExchangeHasTheOtherMultiprocessors) {
  Block block;
  block.values.resize(2), block.alias = {0, 1};
  const CommCall exchange{.collective = Collective::dispatch, .group = Group::expert, .payload = {1 << 20}};
  const OpCall add{.op = op::Add{1, 8}};
  block.forward = {{.call = exchange, .lane = Lane::expert_communication, .reads = {}, .writes = {0}, .weights = {}},
                   {.call = add, .lane = Lane::compute, .reads = {}, .writes = {1}, .weights = {}}};
  const PriceCall price = [](const BlockNode& n) { return Estimate{.median = {std::holds_alternative<CommCall>(n.call) ? 50e-6 : 100e-6}}; };
  const Problem p = problem("qwen3-30b-a3b", 8, Training::lora);
  const Parallelism par{.ep = 8, .dp_replicate = 8};
  const Links links(p.cluster, p.runtime, {}, p.profile);
  const BlockTime beside = block_time(block, price, lent_to(links, par));
  EXPECT_NEAR(beside.forward.total.value, 100e-6 + 50e-6 * 32 / 132, 1e-15);
  EXPECT_NEAR(beside.forward.exposed.value, 50e-6 * 32 / 132, 1e-15);
  EXPECT_NEAR(beside.forward.compute.value, 100e-6, 1e-15);
  EXPECT_NEAR(block_time(block, price).forward.total.value, 100e-6, 1e-15);
  // What the exchange brings is waited for: nothing runs beside it, nothing is lost.
  block.forward[1].reads = {0};
  EXPECT_NEAR(block_time(block, price, lent_to(links, par)).forward.total.value, 150e-6, 1e-15);
  // A call listed behind the compute that it does not wait for runs beside it all the same.
  block.forward[1].reads = {};
  std::swap(block.forward[0], block.forward[1]);
  EXPECT_NEAR(block_time(block, price, lent_to(links, par)).forward.total.value, 100e-6 + 50e-6 * 32 / 132, 1e-15);
}

// Exchanges in pieces run under the experts of other pieces, those of one micro-batch under another's compute: where nothing else moves both roads take the same
// from it. Gathers and reductions beside passes side by side are known by their sums.
TEST(Pieces, AndPassesSideBySideLendTheSameInBothRoads) {
  for (const bool sharded : {false, true})
    for (const Schedule schedule : {Schedule::one_forward_one_backward, Schedule::expert_overlap}) {
      const Problem p = problem("deepseek-v2-lite", 16, sharded ? Training::full : Training::lora);
      Plan plan = a_plan(p, {.ep = 8, .dp_replicate = sharded ? 1 : 16, .dp_shard = sharded ? 16 : 1});
      plan.recompute = Recompute::selective;
      plan.schedule = schedule;
      plan.experts.chunks = 3;
      const double alone = engine(p, plan, false), beside = engine(p, plan, true), planned = forecast(p, plan).step.value;
      EXPECT_NEAR(forecast(p, plan, false, false).step.value, alone, 1e-6 * alone);
      EXPECT_GT(beside, 1.005 * alone);
      EXPECT_NEAR(planned, beside, (sharded ? 0.2 : 0.02) * (beside - alone)) << sharded << int(schedule) << " alone " << alone;
    }
}

// Weights gathered under compute, no exchange: 16 of 132 multiprocessors by NCCL's channels between nodes. With a profile that has measured half of computing lost, or nothing,
// both roads take that.
TEST(Measured, WhatComputingLosesComesFromTheProfileInBothRoads) {
  Problem p = problem("qwen3-30b-a3b", 32, Training::lora);
  const Plan plan = a_plan(p, {.ep = 1, .dp_replicate = 1, .dp_shard = 32, .expert_shard = 32});
  const double alone = engine(p, plan, false), channels = forecast(p, plan).step.value;
  const auto with = [&](double delay) {
    Problem out = p;
    out.profile.device.name = p.cluster.device.name;
    for (const char* name : {"all_gather", "reduce_scatter"}) {
      out.profile.samples.push_back({.key = std::string(name) + " payload=1048576 ranks=32 hosts=4", .median = {1e-3}, .spread = 0, .count = 5});
      if (delay > 0) out.profile.samples.push_back({.key = "delay " + std::string(name) + " payload=1048576 ranks=32 hosts=4", .median = {delay}, .spread = 0, .count = 5});
    }
    return out;
  };
  EXPECT_EQ(forecast(with(0), plan).step.value, channels) << "no delay was measured: as without the profile";
  const Problem half = with(0.5e-3), none = with(1e-9);
  const double planned = forecast(half, plan).step.value, played = engine(half, plan, true);
  EXPECT_GT(played, channels);
  EXPECT_NEAR(planned - alone, played - alone, 0.02 * (played - alone) + 1e-3 * alone);
  EXPECT_NEAR((planned - alone) / (channels - alone), 0.5 / (16.0 / 132), 0.25) << "c + m l, m from 0.12 to 0.5";
  EXPECT_NEAR(forecast(none, plan).step.value, alone, 1e-3 * alone);
}

// The same of exchanges in pieces, which a schedule lays under experts, and of passes side by side.
TEST(Measured, PiecesAndPassesSideBySideLoseWhatWasMeasured) {
  for (const Schedule schedule : {Schedule::one_forward_one_backward, Schedule::expert_overlap}) {
    Problem p = problem("deepseek-v2-lite", 16, Training::lora);
    Plan plan = a_plan(p, {.ep = 8, .dp_replicate = 16, .dp_shard = 1});
    plan.recompute = Recompute::selective;
    plan.schedule = schedule;
    plan.experts.chunks = 3;
    const double channels = engine(p, plan, true);
    p.profile.device.name = p.cluster.device.name;
    p.profile.samples.push_back({.key = "dispatch payload=1024 ranks=8", .median = {1e-3}, .spread = 0, .count = 5});
    p.profile.samples.push_back({.key = "delay dispatch payload=1024 ranks=8", .median = {0.6e-3}, .spread = 0, .count = 5});
    const double alone = engine(p, plan, false), beside = engine(p, plan, true), planned = forecast(p, plan).step.value;
    EXPECT_GT(beside, 1.02 * channels) << "0.6 of computing, not 32 of 132 multiprocessors";
    EXPECT_NEAR(planned, beside, 0.02 * (beside - alone)) << int(schedule) << " alone " << alone;
  }
}

struct Point {
  const char* name;
  const char* model;
  std::int64_t gpus;
  Training method;
  Parallelism parallelism;
  double within;   ///< how far the planned stretch may be from the engine's, of the engine's
};
class Shared : public testing::TestWithParam<Point> {};

// Expert exchanges and gathered weights over the same NICs. Alone both roads agree (tests/planner/engine_test.cpp). Shared, the engine's steps take up to 33 % longer; the
// closed form knows how much of a pass exchanges, not when: where gathers are over before the first exchange begins (Qwen's frozen experts), it says too much.
// In two stages of little traffic (a stretch of 0.4 % of a step) it has 4.5 of the engine's 7.7 ms; where the rest arises is not known.
TEST_P(Shared, TheClosedFormStretchesAStepAsTheEngineDoes) {
  const Point& at = GetParam();
  const Problem p = problem(at.model, at.gpus, at.method);
  const Plan plan = a_plan(p, at.parallelism);
  const double alone = engine(p, plan, false), shared = engine(p, plan, true), planned = forecast(p, plan).step.value, planned_alone = forecast(p, plan, false, false).step.value;
  EXPECT_NEAR(planned_alone, alone, 1e-3 * alone);
  EXPECT_GE(planned, planned_alone);
  if (at.within > 0.5) { EXPECT_GE(planned, shared); }   // spread evenly, gathers meet exchanges that in truth come after them
  EXPECT_NEAR(planned - planned_alone, shared - alone, at.within * (shared - alone) + 1e-3 * alone);
}
INSTANTIATE_TEST_SUITE_P(Points, Shared,
                         testing::Values(Point{"NothingGathered", "qwen3-30b-a3b", 32, Training::lora, {.ep = 32, .dp_replicate = 32, .dp_shard = 1}, 0},
                                         Point{"NoExchange", "qwen3-30b-a3b", 32, Training::lora, {.ep = 1, .dp_replicate = 1, .dp_shard = 32, .expert_shard = 32}, 0.02},
                                         Point{"QwenTwoStages", "qwen3-30b-a3b", 32, Training::lora, {.pp = 2, .ep = 16, .dp_replicate = 1, .dp_shard = 16}, 0.2},
                                         Point{"QwenShardedExperts", "qwen3-30b-a3b", 32, Training::lora, {.ep = 16, .dp_replicate = 1, .dp_shard = 32, .expert_shard = 2}, 0.7},
                                         Point{"QwenFull", "qwen3-30b-a3b", 32, Training::full, {.ep = 16, .dp_replicate = 1, .dp_shard = 32, .expert_shard = 2}, 0.1},
                                         Point{"DeepSeek", "deepseek-v3", 128, Training::lora, {.ep = 32, .dp_replicate = 1, .dp_shard = 128, .expert_shard = 4}, 0.1},
                                         Point{"KimiTwoStages", "kimi-k3", 128, Training::lora, {.pp = 2, .tp = 2, .ep = 16, .dp_replicate = 8, .dp_shard = 4, .expert_shard = 2}, 0.1},
                                         Point{"Kimi", "kimi-k3", 128, Training::lora, {.tp = 2, .ep = 32, .dp_replicate = 1, .dp_shard = 64, .expert_shard = 4}, 0.1}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace moeplan
