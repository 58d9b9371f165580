#include "sim/engine/idle.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/sim/hand_made_job.hpp"

namespace moeplan {
namespace {

using namespace testing;

Picoseconds of(const ActivityTimes& t, Activity a) { return t[static_cast<std::size_t>(a)]; }

TEST(CriticalPath, FollowsTheSlowerBranch) {
  Job job;
  pass(job, "forward of block", {compute(10), communicate(job, 30, {0}), compute(20, {0}), compute(5, {1, 2})});
  job.programs.push_back({{run(0)}});
  line_up(job);
  const CriticalPath path = critical_path(job, play(job));
  EXPECT_EQ(path.records.size(), 3u);
  EXPECT_EQ(of(path.time, Activity::forward), 15);
  EXPECT_EQ(of(path.time, Activity::expert_communication), 30);
}

TEST(CriticalPath, SumsToTheStepAndHasNoHoles) {
  const Job job = pipeline(4, 8, 100, 200, 30);
  const Played p = play(job);
  const CriticalPath path = critical_path(job, p);
  EXPECT_EQ(std::accumulate(path.time.begin(), path.time.end(), Picoseconds{0}), p.step);
  Picoseconds at = 0;
  for (const auto i : path.records) {
    const Record& r = p.records[static_cast<std::size_t>(i)];
    const auto& [first, last] = p.tasks[static_cast<std::size_t>(r.rank)][static_cast<std::size_t>(r.task)];
    EXPECT_EQ(p.start(r), at);
    EXPECT_GE(p.start(r), first);
    EXPECT_LE(r.end, last);
    at = r.end;
  }
  EXPECT_EQ(at, p.step);
}

TEST(IdleTime, AnExchangeThatNothingHidesIsCharged) {
  Job job;
  pass(job, "forward of block", {compute(10), communicate(job, 30, {0}), compute(20, {0}), compute(5, {1, 2})});
  job.programs.push_back({{run(0)}});
  line_up(job);
  const auto idle = idle_time(job, play(job));
  EXPECT_EQ(idle[0].busy, 35);
  EXPECT_EQ(of(idle[0].waiting, Activity::expert_communication), 10);   // 30 less the 20 that run beside it
  EXPECT_EQ(idle[0].idle(), 10);
}

// Two stages, one micro-batch: the first waits 2 x 7 for messages and 300 for the other stage; so does the second.
TEST(IdleTime, BubbleAndMessagesAreToldApart) {
  const Job job = pipeline(2, 1, 100, 200, 7);
  const auto idle = idle_time(job, play(job));
  for (const RankIdle& r : idle) {
    EXPECT_EQ(r.busy, 300);
    EXPECT_EQ(r.idle(), 314);
  }
  EXPECT_EQ(of(idle[0].waiting, Activity::pipeline_exchange), 14);
  EXPECT_EQ(idle[0].bubble, 300);
}

TEST(IdleTime, BusyAndIdleSumToTheStepOnEveryRank) {
  const Job job = pipeline(8, 20, 100, 190, 33);
  const Played p = play(job);
  for (const RankIdle& r : idle_time(job, p)) EXPECT_EQ(r.busy + r.idle(), p.step);
}

}  // namespace
}  // namespace moeplan
