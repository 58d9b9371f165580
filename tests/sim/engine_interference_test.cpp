/// What slows steps besides links: communication kernels, memory, the host, slow devices. And how far contention can go.

#include "sim/engine/interference.hpp"

#include <gtest/gtest.h>

#include "sim/engine/idle.hpp"
#include "tests/sim/hand_made_job.hpp"

namespace moeplan {
namespace {

using namespace testing;

JobCall& call_of(Job& job, std::int32_t pass, std::size_t step) {
  return job.calls[static_cast<std::size_t>(job.passes[static_cast<std::size_t>(pass)].steps[step].call)];
}

/// One rank that runs one pass.
Job alone(Job job, std::int32_t pass) {
  job.programs.push_back({.tasks = {run(pass)}});
  line_up(job);
  return job;
}

// Half of the multiprocessors taken: all work at half speed; half of the memory's bandwidth: bandwidth-bound work alone.
TEST(Interference, SlowsEachBoundByWhatItLacks) {
  EXPECT_DOUBLE_EQ(slowed(0, 0.5, 0), 0.5);
  EXPECT_DOUBLE_EQ(slowed(1, 0.5, 0), 0.5);
  EXPECT_DOUBLE_EQ(slowed(1, 0.5, 0.75), 0.25);
  EXPECT_DOUBLE_EQ(slowed(1, 0, 0.5), 0.5);
  EXPECT_DOUBLE_EQ(slowed(0, 0, 0.5), 1);
  EXPECT_DOUBLE_EQ(slowed(0.5, 0.5, 0.5), 0.5);
  EXPECT_DOUBLE_EQ(slowed(0.5, 0, 0), 1);
}

// 100 of compute all at the memory's bandwidth, a call of 50 that takes half of it: 50 at half speed (25 done), then 75.
TEST(Interference, ACallTakesBandwidthFromWhatIsBoundByIt) {
  Job job;
  const auto p = pass(job, "pass", {compute(100), communicate(job, 50)});
  job.passes[static_cast<std::size_t>(p)].steps[0].memory_bound = 1;
  call_of(job, p, 1).memory = 0.5;
  EXPECT_EQ(play(alone(job, p), {.interference = true}).step, 125);
  EXPECT_EQ(play(alone(job, p)).step, 100);
}

// An exchange of 100 beside 65 of compute, keeping 0.65 of its speed: 42.25 done at 65, 57.75 more alone.
TEST(Interference, ComputeSlowsTheExchangeBesideIt) {
  Job job;
  const auto p = pass(job, "pass", {compute(6500), communicate(job, 10000)});
  call_of(job, p, 1).beside_compute = 0.65;
  EXPECT_EQ(play(alone(job, p), {.interference = true}).step, 6500 + (10000 - 4225));
  EXPECT_EQ(play(alone(job, p)).step, 10000);
}

// When it ends, everything is given back: the second compute step after the call runs at full speed.
TEST(Interference, GivesBackWhatItTook) {
  Job job;
  const auto p = pass(job, "pass", {compute(100), communicate(job, 60, {}, Track::expert_communication, Group::expert, 0, 0.5), compute(100, {0})});
  EXPECT_EQ(play(alone(job, p), {.interference = true}).step, 60 + 70 + 100);
}

// Three calls of 10 issued 30 apart: at 30, 60, 90; the last ends at 100. Compute of 1000 hides it all.
TEST(HostLaunch, HoldsUpShortCallsAndNotLongOnes) {
  Job job;
  const auto quick = pass(job, "short", {compute(10), compute(10, {0}), compute(10, {1})});
  EXPECT_EQ(play(alone(job, quick), {.host_launch = 30}).step, 100);
  Job other;
  const auto slow = pass(other, "long", {compute(1000), compute(1000, {0}), compute(1000, {1})});
  EXPECT_EQ(play(alone(other, slow), {.host_launch = 30}).step, 30 + 3000);
}

// The host stands still until what it waits for has ended, then issues on: 30 + 100, wait 5, then 30 more and 10.
TEST(HostLaunch, StartsAnewAfterAHostWait) {
  Job job;
  Step wait = compute(5, {0}, Activity::host_wait);
  wait.track = Track::host;
  const auto p = pass(job, "pass", {compute(100), wait, compute(10, {1})});
  const Job one = alone(job, p);
  const Played played = play(one, {.host_launch = 30});
  EXPECT_EQ(played.step, 30 + 100 + 5 + 30 + 10);
  EXPECT_EQ(critical_path(one, played).time[static_cast<std::size_t>(Activity::host_wait)], 30 + 5 + 30);
  EXPECT_EQ(idle_time(one, played)[0].waiting[static_cast<std::size_t>(Activity::host_wait)], 65);
  for (const TimelineEvent& e : timeline(one, played).events) EXPECT_GT(e.duration, 0);
}

// Two members of a group, one twice as slow: the call starts when the slow one arrives, and both go on together.
TEST(Straggler, ItsGroupWaitsForIt) {
  Job job;
  const auto p = pass(job, "pass", {compute(100), communicate(job, 10, {0}), compute(50, {1})});
  job.programs.push_back({.tasks = {run(p)}});
  for (std::int32_t i = 0; i < 2; ++i) {
    JobRank r;
    r.rank = i;
    r.groups[static_cast<std::size_t>(Group::expert)] = 0;
    r.slowdown = i == 0 ? 1 : 2;
    job.ranks.push_back(r);
  }
  job.groups = {{0, 1}};
  job.world = 2;
  const Played played = play(job);
  EXPECT_EQ(played.step, 200 + 10 + 100);
  EXPECT_EQ(played.tasks[0][0].second, 200 + 10 + 50);
}

}  // namespace
}  // namespace moeplan
