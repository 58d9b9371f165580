#include "sim/engine/engine.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "tests/sim/hand_made_job.hpp"

namespace moeplan {
namespace {

using namespace testing;

constexpr double kGb = 1e9;

/// Two nodes of one device with a NIC of 100 GB/s; 1 GB takes 10 ms = 1e10 ps.
ClusterSpec cluster(std::int64_t nodes = 2) {
  ClusterSpec c;
  c.nodes = nodes;
  c.devices_per_node = 1;
  LinkTier t;
  t.efficiency = t.all_to_all_efficiency = 1;
  t.kind = LinkKind::scale_up;
  t.span = 1;
  t.bandwidth = {400 * kGb};
  c.tiers.push_back(t);
  t.kind = LinkKind::network;
  t.span = 0;
  t.bandwidth = {100 * kGb};
  c.tiers.push_back(t);
  return c;
}
constexpr Picoseconds kGigabyte = 10'000'000'000;

TEST(Engine, StepsOfAPassRunAsSoonAsWhatTheyWaitForHasEnded) {
  Job job;
  // 0 -> 1 (communication) -> 3; 2 runs beside 1: 10 + max(30, 20) + 5.
  pass(job, "forward of block", {compute(10), communicate(job, 30, {0}), compute(20, {0}), compute(5, {1, 2})});
  job.programs.push_back({{run(0)}});
  line_up(job);
  const Played p = play(job);
  EXPECT_EQ(p.step, 45);
  EXPECT_EQ(p.events, 4u);
}

TEST(Engine, TasksOfAQueueRunInListOrder) {
  Job job;
  pass(job, "forward of block", {compute(10)});
  job.programs.push_back({{run(0), run(0), run(0)}});
  line_up(job);
  const Played p = play(job);
  EXPECT_EQ(p.tasks[0], (std::vector<std::pair<Picoseconds, Picoseconds>>{{0, 10}, {10, 20}, {20, 30}}));
}

TEST(Engine, AGatherRunsUnderTheBlockBefore) {
  Job job;
  const auto block = pass(job, "forward of block", {compute(100)});
  const auto gather = pass(job, "gather of block", {communicate(job, 40, {}, Track::data_communication, Group::data_shard)});
  // Gather, block; the second gather is listed after nothing, so it runs under the first block.
  job.programs.push_back({{run(gather, {}, 0, Queue::data), run(gather, {}, 0, Queue::data), run(block, {0}), run(block, {1})}});
  line_up(job);
  EXPECT_EQ(play(job).step, 40 + 100 + 100);
}

// (m + p - 1)(f + b) + 2 (p - 1) x: the bubble of 1F1B, and the messages that nothing hides, once each way.
TEST(Engine, OneForwardOneBackwardHasItsBubble) {
  EXPECT_EQ(play(pipeline(1, 8, 100, 200, 0)).step, 8 * 300);
  EXPECT_EQ(play(pipeline(4, 8, 100, 200, 0)).step, (8 + 3) * 300);
  EXPECT_EQ(play(pipeline(2, 1, 100, 200, 7)).step, 2 * 300 + 2 * 7);
}

TEST(Engine, AStragglerHoldsThePipelineBack) {
  Job job = pipeline(2, 8, 100, 200, 0);
  job.ranks[1].slowdown = 1.1;
  // The first forward, eight slow rounds on the last stage, the first stage's last backward.
  EXPECT_EQ(play(job).step, 100 + 8 * 330 + 200);
}

TEST(Engine, TwoCallsShareTheNicOfTheirRank) {
  Job job;
  pass(job, "forward of block", {communicate(job, kGigabyte, {}, Track::expert_communication, Group::expert, 1 * kGb),
                                 communicate(job, kGigabyte, {}, Track::data_communication, Group::data_shard, 1 * kGb)});
  job.programs.push_back({{run(0)}});
  line_up(job);
  EXPECT_EQ(play(job).step, kGigabyte);
  const ClusterSpec c = cluster();
  EXPECT_EQ(play(job, {.cluster = &c}).step, 2 * kGigabyte);
}

// The short call ends at 2 x half a gigabyte; the long one then has the NIC to itself: 1 + 0.5 gigabytes of time.
TEST(Engine, ACallSpeedsUpWhenTheOtherEnds) {
  Job job;
  pass(job, "forward of block", {communicate(job, kGigabyte, {}, Track::expert_communication, Group::expert, 1 * kGb),
                                 communicate(job, kGigabyte / 2, {}, Track::data_communication, Group::data_shard, 0.5 * kGb)});
  job.programs.push_back({{run(0)}});
  line_up(job);
  const ClusterSpec c = cluster();
  const Played p = play(job, {.cluster = &c});
  EXPECT_EQ(p.records[0].end, kGigabyte);
  EXPECT_EQ(p.step, kGigabyte + kGigabyte / 2);
}

TEST(Engine, WithoutContentionTheNetworkChangesNothing) {
  const Job job = pipeline(2, 4, 1000, 2000, 10);
  const ClusterSpec c = cluster();
  const Played with = play(job, {.cluster = &c}), without = play(job);
  EXPECT_EQ(with.step, without.step);
  EXPECT_EQ(with.tasks, without.tasks);
}

// Kernels that hold a fifth of the multiprocessors for 100 slow 100 of compute to 4/5: 80 done, then 20 more alone.
TEST(Engine, CommunicationKernelsTakeMultiprocessorsFromCompute) {
  Job job;
  pass(job, "forward of block", {compute(100), communicate(job, 100, {}, Track::expert_communication, Group::expert, 0, 0.2)});
  job.programs.push_back({{run(0)}});
  line_up(job);
  EXPECT_EQ(play(job).step, 100);
  EXPECT_EQ(play(job, {.interference = true}).step, 120);
}

TEST(Engine, ACallOfAGroupStartsWhenItsLastMemberArrives) {
  Job job;
  const auto steps = [&](Picoseconds before) { return std::vector<Step>{compute(before), communicate(job, 30, {0})}; };
  const auto fast = pass(job, "fast", steps(10)), slow = pass(job, "slow", steps(50));
  job.programs.push_back({{run(fast)}});
  job.programs.push_back({{run(slow)}});
  line_up(job);
  job.groups.push_back({0, 1});
  for (JobRank& r : job.ranks) r.groups[static_cast<std::size_t>(Group::expert)] = 0;
  const Played p = play(job);
  EXPECT_EQ(p.step, 80);
  EXPECT_EQ(p.tasks[0][0].second, 80);
  EXPECT_EQ(p.tasks[1][0].second, 80);
}

TEST(Engine, EqualRanksPlayedTogetherTakeTheTimeOfOne) {
  const auto job_of = [](std::int32_t ranks) {
    Job job;
    pass(job, "forward of block", {compute(10), communicate(job, 30, {0}), compute(20, {0}), compute(5, {1, 2})});
    job.programs.push_back({{run(0), run(0), run(0)}});
    for (std::int32_t i = 0; i < ranks; ++i) {
      JobRank r;
      r.rank = i;
      if (ranks > 1) r.groups[static_cast<std::size_t>(Group::expert)] = 0;
      job.ranks.push_back(r);
    }
    if (ranks > 1) job.groups.push_back({0, 1, 2, 3});
    return job;
  };
  const Played one = play(job_of(1)), four = play(job_of(4));
  EXPECT_EQ(four.step, one.step);
  for (const auto& tasks : four.tasks) EXPECT_EQ(tasks, one.tasks[0]);
}

TEST(Engine, LanesThatWaitForEachOtherAreReportedAsTheCycle) {
  Job job;
  const auto f = pass(job, "forward of block", {compute(10)}), b = pass(job, "backward of block", {compute(10)});
  JobProgram first, last;
  // Stage 0 wants the gradient before it sends the activations that stage 1 makes it from.
  first.tasks = {receive(false), run(b, {0}), run(f), send(job, 1, true, {2})};
  last.tasks = {receive(true), run(f, {0}), run(b), send(job, 1, false, {2})};
  job.programs = {first, last};
  line_up(job);
  try {
    (void)play(job);
    FAIL() << "played";
  } catch (const InputError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("the ranks wait for each other"), std::string::npos) << text;
    EXPECT_NE(text.find("stage 0 (rank 0): receive of gradients, micro-batch 0 -> stage 1 (rank 1): send of gradients, micro-batch 0"), std::string::npos) << text;
    EXPECT_NE(text.find("stage 1 (rank 1): receive of activations, micro-batch 0 -> stage 0 (rank 0): send of activations, micro-batch 0"), std::string::npos) << text;
  }
}

TEST(Engine, AMessageThatNobodySendsIsRefused) {
  Job job;
  pass(job, "forward of block", {compute(10)});
  job.programs.push_back({{run(0)}});
  job.programs.push_back({{receive(true), run(0, {0})}});
  line_up(job);
  try {
    (void)play(job);
    FAIL() << "played";
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "plan: stage 1 receives 1 activation messages, its neighbour sends 0");
  }
}

TEST(Engine, TheTimelineHoldsEveryStepOnceAndJoinsMessages) {
  const Job job = pipeline(2, 2, 100, 200, 10);
  const Played p = play(job);
  const StepTimeline t = timeline(job, p);
  EXPECT_EQ(t.step, p.step);
  EXPECT_EQ(t.events.size(), p.records.size());
  EXPECT_EQ(t.flows.size(), 4u);   // two micro-batches, there and back
  for (const TimelineFlow& f : t.flows) EXPECT_EQ(t.events[static_cast<std::size_t>(f.from)].end(), t.events[static_cast<std::size_t>(f.to)].end());
  for (std::size_t i = 1; i < t.events.size(); ++i) EXPECT_LE(t.events[i - 1].start, t.events[i].start);
}

TEST(Engine, PlayingTwiceGivesTheSameBytes) {
  const Job job = pipeline(4, 16, 101, 203, 17);
  const ClusterSpec c = cluster(4);
  EXPECT_EQ(timeline(job, play(job, {.cluster = &c})), timeline(job, play(job, {.cluster = &c})));
}

}  // namespace
}  // namespace moeplan
