/// The clock of a plan against a search of all clocks over all layers, one by one.

#include <gtest/gtest.h>

#include "core/spec/profile_keys.hpp"
#include "planner/load_spread.hpp"
#include "planner/prices.hpp"
#include "planner/problem.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

Problem problem(std::int64_t gpus) {
  ProblemRequest r;
  r.model = "qwen3-30b-a3b";
  r.device = "h200";
  r.gpus = gpus;
  return make_problem(MOEPLAN_SOURCE "/configs", r);
}

/// Calls of a forward and a backward pass through all slots, layer after layer.
std::vector<PoweredCall> calls_of(const Problem& p, const Plan& plan, const Prices& prices) {
  const ModelOutline outlined = outline(p.model, p.workload);
  std::vector<PoweredCall> out;
  for (std::int32_t layer = -1; layer <= static_cast<std::int32_t>(p.model.layers.size()); ++layer) {
    const Block block = lower_slot(p, plan, outlined, layer, 1.0);
    for (const auto* pass : {&block.forward, &block.backward})
      for (const BlockNode& n : *pass)
        if (const OpCall* call = std::get_if<OpCall>(&n.call)) out.push_back(prices.rested(*call).power);
  }
  return out;
}

TEST(PlanClocks, AreTheFirstFromAboveAtWhichAllLayersDrawNoMoreThanTheLimit) {
  for (const std::int64_t gpus : {1, 8}) {
    const Problem p = problem(gpus);
    const Prices rested(p.cluster.device, p.profile, p.runtime, load_spread(p));
    const PlanClocks clocks(p, rested);
    ASSERT_NE(rested.power(), nullptr);
    const PowerProfile& power = *rested.power();
    for (const std::int64_t micro_batch : {1, 4}) {
      for (const Recompute recompute : {Recompute::none, Recompute::full}) {
        Plan plan;
        plan.micro_batch = micro_batch, plan.recompute = recompute;
        plan.parallelism.ep = plan.parallelism.dp_shard = static_cast<int>(gpus);
        const std::vector<PoweredCall> calls = calls_of(p, plan, rested);
        double clock = 1;
        for (; clock > 0.1; clock -= 1e-4) {
          double joules = 0, seconds = 0;
          for (const PoweredCall& c : calls) {
            if (c.seconds <= 0) continue;
            const double t = seconds_at(c, clock);
            seconds += t, joules += power.idle * t + joules_at(power, c, clock);
          }
          if (joules <= power.limit * seconds) break;
        }
        const HeldClock held = clocks.of(plan);
        EXPECT_NEAR(held.clock, clock, 2e-4) << gpus << " " << micro_batch;
        EXPECT_LT(held.clock, 1) << "an H200 does not hold its boost clock under this";
        // One device alone meets its limit; several wait for each other now and then.
        EXPECT_NEAR(held.fastest, gpus > 1 ? 1.0 : std::min(1.0, 1.02 * held.clock), 1e-12);
        EXPECT_NEAR(held.slowest, 0.98 * held.clock, 1e-12);
      }
    }
  }
}

// The ends of each call are those of the ends of the clock, beside the band of its own time.
TEST(PlanClocks, EndsOfACallAreThoseOfTheClocksEnds) {
  Problem p = problem(1);
  p.runtime.launch_overhead = {0};
  std::erase_if(p.profile.samples, [](const ProfileSample& s) { return s.key.starts_with(kLaunchKey); });
  Plan plan;
  const Prices rested(p.cluster.device, p.profile, p.runtime, load_spread(p)), held = prices_of(p, plan);
  const HeldClock clock = PlanClocks(p, rested).of(plan);
  const OpCall call = parse_key("linear tokens=4096 in=2048 out=4096 forward").value();
  const Prices::Rested rest = rested.rested(call);
  const Estimate e = held.price(call);
  const auto at = [&](Seconds s, double x) { return s.value * seconds_at(rest.power, x) / rest.power.seconds; };
  EXPECT_NEAR(e.median.value, at(rest.estimate.median, clock.clock), 1e-12);
  EXPECT_NEAR(e.low.value, at(rest.estimate.low, clock.fastest), 1e-12);
  EXPECT_NEAR(e.high.value, at(rest.estimate.high, clock.slowest), 1e-12);
  EXPECT_LT(e.low, e.median);
  EXPECT_GT(e.high, e.median);
}

}  // namespace
}  // namespace moeplan
