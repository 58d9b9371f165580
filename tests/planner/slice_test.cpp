/// One rank of a plan alone: the rows drawn for it, and what is predicted of its computing.

#include <gtest/gtest.h>

#include <numeric>

#include "core/error.hpp"
#include "planner/problem.hpp"
#include "planner/simulation.hpp"
#include "planner/slice.hpp"
#include "sim/engine/trace.hpp"

namespace moeplan {
namespace {

Problem deepseek() {
  ProblemRequest r;
  r.model = "deepseek-v3";
  r.device = "h200";
  r.gpus = 64;
  r.sequence_length = 1024;
  return make_problem(MOEPLAN_SOURCE "/configs", r);
}

Plan on_64(const Problem& p) {
  Plan q;
  q.parallelism = {.ep = 64, .dp_shard = 64};
  q.stage_layers = {static_cast<std::int64_t>(p.model.layers.size())};
  q.recompute = Recompute::full;
  return q;
}

TEST(SliceDraw, GivesAllRanksTogetherEveryRoutedToken) {
  Problem p = deepseek();
  p.load.distribution = LogNormalLoad{.expert_sigma = 0.6, .group_sigma = 0.3, .group_size = 32};
  const Plan q = on_64(p);
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> all;
  double most = 0;
  for (int r = 0; r < 64; ++r) {
    const SliceDraw d = draw_slice(p, q, r);
    ASSERT_EQ(d.rows.size(), 58u);  // three dense layers, 58 with experts
    for (const auto& [at, rows] : d.rows) {
      ASSERT_EQ(rows.size(), 4u);
      all[at] += std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    }
    most = std::max(most, d.most);
    EXPECT_LE(d.most, 64);
  }
  for (const auto& [at, rows] : all) EXPECT_EQ(rows, 64 * 1024 * 8) << "layer " << at.first;
  EXPECT_GT(most, 1.5);
  EXPECT_EQ(draw_slice(p, q, 5).rows, draw_slice(p, q, 5).rows);
  EXPECT_NE(draw_slice(p, q, 5).rows, draw_slice(p, q, 6).rows);
}

TEST(SliceDraw, TakesATraceAsItIs) {
  Problem p = deepseek();
  TraceLoad trace;
  trace.counts.resize(58, std::vector<double>(256, 1));
  trace.counts[0][8] = 257;  // of 512 in the first layer: the first expert of rank 2 has half of all rows and a bit
  p.load.distribution = trace;
  const SliceDraw d = draw_slice(p, on_64(p), 2);
  const std::int64_t all = 64 * 1024 * 8;
  EXPECT_EQ(d.rows.at({3, 0}), (std::vector<std::int64_t>{all / 512 * 257, all / 512, all / 512, all / 512}));
  EXPECT_EQ(d.rows.at({4, 0}), (std::vector<std::int64_t>{2048, 2048, 2048, 2048}));
  EXPECT_DOUBLE_EQ(d.most, 260.0 / 8);
  EXPECT_DOUBLE_EQ(d.busiest.at({3, 0}), 260.0 / 8);
}

TEST(SliceDraw, RefusesARankThatIsNotThere) {
  const Problem p = deepseek();
  EXPECT_THROW((void)draw_slice(p, on_64(p), 64), InputError);
  EXPECT_THROW((void)draw_slice(p, on_64(p), -1), InputError);
}

/// The engine prices the same program by another way: parts of its timeline, each alone on the device.
TEST(SliceForecast, IsWhatTheSimulatedRankComputesAtABalancedLoad) {
  Problem p = deepseek();
  p.model.layers.resize(6);
  p.load.distribution = UniformLoad{};
  p.profile.power.reset();   // a plan's clock is that of whole layers, a slice's that of its own calls
  Plan q = on_64(p);
  q.micro_batches = 2;
  const SliceForecast slice = slice_forecast(p, q, 0, draw_slice(p, q, 0));
  const Simulation s = simulate(p, q, {.contention = false});
  const StepTimeline t = timeline(s.job, s.played);
  std::map<std::string, double> operators;
  double compute = 0;
  for (const TimelineEvent& e : t.events) {
    if (e.rank != 0 || t.lanes[static_cast<std::size_t>(e.lane)] != "compute") continue;
    compute += to_seconds(e.duration).value;
    if (e.detail < 0) continue;
    for (const TimelinePart& part : t.details[static_cast<std::size_t>(e.detail)].parts)
      operators[t.names[static_cast<std::size_t>(part.name)]] += to_seconds(part.duration).value;
  }
  EXPECT_NEAR(slice.compute.value, compute, 1e-6 * compute);
  for (const auto& [name, seconds] : slice.operators)
    if (name != "adamw") {
      EXPECT_NEAR(seconds.value, operators[name], 1e-6 * seconds.value + 1e-9) << name;
    }
  EXPECT_LT(slice.low.value, slice.compute.value);
  EXPECT_GT(slice.high.value, slice.compute.value);
  EXPECT_GT(slice.communication.value, 0);
  EXPECT_NEAR(slice.basis[0] + slice.basis[1] + slice.basis[2], 1, 1e-9);
}

TEST(SliceForecast, FollowsTheRowsOfEachLayer) {
  Problem p = deepseek();
  p.profile.power.reset();   // at one clock
  TraceLoad trace;
  trace.counts.resize(58, std::vector<double>(256, 1));
  for (int e = 0; e < 4; ++e) trace.counts[7][static_cast<std::size_t>(e)] = 9;  // rank 0, one layer
  p.load.distribution = trace;
  const Plan q = on_64(p);
  const SliceForecast hot = slice_forecast(p, q, 0, draw_slice(p, q, 0)), cold = slice_forecast(p, q, 1, draw_slice(p, q, 1));
  EXPECT_GT(hot.operators.at("grouped_linear forward").value, 1.02 * cold.operators.at("grouped_linear forward").value);
  EXPECT_DOUBLE_EQ(hot.operators.at("attention forward").value, cold.operators.at("attention forward").value);
}

/// Copies that take long rest the device: its clock is higher then, and what follows the clock is shorter.
TEST(SliceForecast, HoldsTheClockOfItsOwnCallsWithTheCopiesBetween) {
  const Problem p = deepseek();
  ASSERT_TRUE(p.profile.power);
  const Plan q = on_64(p);
  const SliceDraw d = draw_slice(p, q, 0);
  const SliceForecast busy = slice_forecast(p, q, 0, d, Seconds{0}), rested = slice_forecast(p, q, 0, d, 0.3 * busy.compute);
  EXPECT_LT(*busy.clock, p.profile.power->boost);
  EXPECT_GT(*rested.clock, 1.02 * *busy.clock);
  EXPECT_LT(rested.operators.at("grouped_linear forward").value, busy.operators.at("grouped_linear forward").value);
  EXPECT_NEAR(rested.operators.at("add forward").value, busy.operators.at("add forward").value, 0.02 * busy.operators.at("add forward").value);
  Problem unknown = p;
  unknown.profile.power.reset();
  EXPECT_FALSE(slice_forecast(unknown, q, 0, d).clock);
}

}  // namespace
}  // namespace moeplan
