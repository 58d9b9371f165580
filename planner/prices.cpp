#include "planner/prices.hpp"

#include <algorithm>

#include "planner/load_spread.hpp"
#include "planner/step_calls.hpp"

namespace moeplan {
namespace {

/// Ends of what one limit makes of one mix: of 34 calls that an H200 slowed, 700 W asked, the middle 90 % were held at 696 to 739 W (bench/results/calibration_h200.md), 3 % about
/// their median, and power goes by about the square of the clock where products follow it. Below a clock that is held, too: a mix may draw more than its calls do one by one.
constexpr double kClockSpread = 0.02;

std::vector<Repeated> calls_of(const Problem& problem, const Plan& plan, const Prices& prices) {
  std::vector<Repeated> out;
  for (const CountedCall& c : step_calls(problem, plan))
    if (const PoweredCall powered = prices.rested(c.call).power; powered.seconds > 0) out.push_back({powered, c.times});
  return out;
}

}  // namespace

HeldClock with_ends(double clock, bool alone) {
  return {.clock = clock, .fastest = alone ? std::min(1.0, clock * (1 + kClockSpread)) : 1.0, .slowest = clock < 1 ? clock * (1 - kClockSpread) : 1.0};
}

HeldClock PlanClocks::of(const Plan& plan) const {
  const PowerProfile* power = rested_.power();
  if (power == nullptr) return {};
  const std::lock_guard lock(mutex_);
  const auto [it, fresh] = known_.try_emplace({plan.micro_batch, plan.recompute});
  if (fresh) {
    it->second = with_ends(sustained_clock(*power, calls_of(problem_, plan, rested_)), problem_.cluster.devices() == 1);
  }
  return it->second;
}

Prices prices_of(const Problem& problem, const Plan& plan) {
  const Prices rested(problem.cluster.device, problem.profile, problem.runtime, load_spread(problem));
  Prices out = plan.experts.capacity_factor || plan.experts.replicas > 0 ? rested.spread_as(load_spread(problem, plan.experts, plan.parallelism)) : rested;
  out.hold(PlanClocks(problem, rested).of(plan));
  return out;
}

}  // namespace moeplan
