#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/configs.hpp"
#include "sim/program/schedules/schedule.hpp"

namespace moeplan {
namespace {

Plan plan_of(Schedule schedule, int stages, int virtual_stages, std::int64_t micro_batches) {
  Plan plan;
  plan.parallelism.pp = stages;
  plan.schedule = schedule;
  plan.virtual_stages = virtual_stages;
  plan.micro_batches = micro_batches;
  return plan;
}

/// "F0 F1 B0": chunk after a dot where there are several; W for weights alone.
std::string text(const std::vector<Turn>& turns, bool chunks) {
  std::string out;
  const auto put = [&](char what, std::int32_t chunk, std::int32_t j) {
    out += (out.empty() || out.back() == '+' ? "" : " ") + std::string(1, what) + std::to_string(j) + (chunks ? "." + std::to_string(chunk) : "");
  };
  for (const Turn& t : turns) {
    switch (t.kind) {
      case Turn::Kind::forward: put('F', t.chunk, t.micro_batch); break;
      case Turn::Kind::backward: put('B', t.chunk, t.micro_batch); break;
      case Turn::Kind::weight: put('W', t.chunk, t.micro_batch); break;
      case Turn::Kind::both:
        put('F', t.forward_chunk, t.forward_micro_batch);
        out += '+';
        put('B', t.chunk, t.micro_batch);
    }
  }
  return out;
}

TEST(Schedule, OneForwardOneBackwardWarmsUpByTheStagesBehind) {
  const Plan plan = plan_of(Schedule::one_forward_one_backward, 4, 1, 4);
  EXPECT_EQ(text(turns(plan, 0), false), "F0 F1 F2 F3 B0 B1 B2 B3");
  EXPECT_EQ(text(turns(plan, 2), false), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(text(turns(plan, 3), false), "F0 B0 F1 B1 F2 B2 F3 B3");
}

// Figure 4 of Narayanan et al. 2021 for two stages of two chunks: the second stage warms up with p micro-batches of its first chunk.
TEST(Schedule, InterleavedGoesThroughTheChunksInGroupsOfTheStages) {
  const Plan plan = plan_of(Schedule::interleaved, 2, 2, 4);
  EXPECT_EQ(text(turns(plan, 1), true), "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
  EXPECT_EQ(text(turns(plan, 0), true), "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
}

// The first stage never falls behind with W, the last one by p - 1.
TEST(Schedule, ZeroBubblePutsWeightGradientsOffByTheStagesBefore) {
  const Plan plan = plan_of(Schedule::zero_bubble, 3, 1, 4);
  EXPECT_EQ(text(turns(plan, 0), false), "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3");
  EXPECT_EQ(text(turns(plan, 2), false), "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3");
}

TEST(Schedule, ExpertOverlapPairsPassesOfDifferentMicroBatches) {
  EXPECT_EQ(text(turns(plan_of(Schedule::expert_overlap, 1, 1, 3), 0), false), "F0 F1+B0 F2+B1 B2");
  const Plan plan = plan_of(Schedule::expert_overlap, 2, 1, 4);
  EXPECT_EQ(text(turns(plan, 1), false), "F0 F1+B0 F2+B1 F3+B2 B3");
  EXPECT_EQ(text(turns(plan, 0), false), "F0 F1 F2 F3+B0 B1 B2 B3");
}

TEST(Schedule, EveryMicroBatchPassesEveryChunkOnceEachWayForwardFirst) {
  for (const ScheduleRule& rule : schedules())
    for (const int v : {1, 2, 3})
      for (const int p : {1, 2, 4})
        for (const int m : {1, 4, 12}) {
          const Plan plan = plan_of(rule.schedule, p, v, m);
          if (!schedule_fault(plan).empty()) continue;
          for (int stage = 0; stage < p; ++stage) {
            std::set<std::pair<int, int>> forward, backward, weight;
            for (const Turn& t : turns(plan, stage)) {
              const std::pair at{t.chunk, t.micro_batch};
              if (t.kind == Turn::Kind::forward) {
                EXPECT_TRUE(forward.insert(at).second);
              }
              if (t.kind == Turn::Kind::both) {
                EXPECT_TRUE(forward.insert({t.forward_chunk, t.forward_micro_batch}).second);
                EXPECT_NE(at, std::pair(t.forward_chunk, t.forward_micro_batch));
              }
              if (t.kind == Turn::Kind::backward || t.kind == Turn::Kind::both) {
                EXPECT_TRUE(forward.count(at));
                EXPECT_TRUE(backward.insert(at).second);
              }
              if (t.kind == Turn::Kind::weight) {
                EXPECT_TRUE(backward.count(at));
                EXPECT_TRUE(weight.insert(at).second);
              }
            }
            EXPECT_EQ(forward.size(), static_cast<std::size_t>(m * v));
            EXPECT_EQ(backward.size(), forward.size());
            EXPECT_EQ(weight.size(), rule.splits_backward ? forward.size() : 0u);
          }
        }
}

TEST(Schedule, SaysInNumbersWhatDoesNotFit) {
  EXPECT_NE(schedule_fault(plan_of(Schedule::interleaved, 4, 1, 8)).find("at least 2"), std::string::npos);
  EXPECT_NE(schedule_fault(plan_of(Schedule::interleaved, 4, 2, 6)).find("pp = 4, which does not divide 6"), std::string::npos);
  EXPECT_NE(schedule_fault(plan_of(Schedule::zero_bubble, 4, 2, 8)).find("one virtual stage"), std::string::npos);
  EXPECT_NE(schedule_fault(plan_of(Schedule::interleaved, 1, 2, 8)).find("more than one pipeline stage"), std::string::npos);
  EXPECT_EQ(schedule_fault(plan_of(Schedule::interleaved, 4, 2, 8)), "");
}

}  // namespace
}  // namespace moeplan
