// The closed forms of a stage's pass and of 1F1B against plays that take every slot and every pass one by one.

#include "planner/stage_pass.hpp"

#include <gtest/gtest.h>

#include <random>

#include "planner/evaluate.hpp"
#include "planner/pass_sums.hpp"
#include "planner/pipeline_step.hpp"

namespace moeplan {
namespace {

/// Gathers are issued `prefetch` slots ahead, reductions after their slot, both on one lane.
double walk(const std::vector<double>& compute, const std::vector<double>& gather, const std::vector<double>& reduce, std::int64_t prefetch) {
  const auto n = static_cast<std::int64_t>(compute.size());
  double now = 0, lane = 0;
  std::int64_t issued = 0;
  std::vector<double> there(compute.size(), 0);
  for (std::int64_t s = 0; s < n; ++s) {
    for (; issued < n && issued <= s + prefetch; ++issued) {
      const auto g = static_cast<std::size_t>(issued);
      if (gather[g] > 0) there[g] = lane = std::max(lane, now) + gather[g];
    }
    const auto i = static_cast<std::size_t>(s);
    now = std::max(now, there[i]) + compute[i];
    if (reduce[i] > 0) lane = std::max(lane, now) + reduce[i];
  }
  return std::max(now, lane);
}

struct Dice {
  std::mt19937 bits{7};
  double real(double most) { return std::uniform_real_distribution<double>(0, most)(bits); }
  std::int64_t whole(std::int64_t least, std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(least, most)(bits); }
  Four four(double most) { return {{real(most), real(most), real(most), real(most)}}; }
};

TEST(StagePass, TwoSlotsHideTheSecondGatherUnderTheFirstSlot) {
  const std::vector<SlotSeconds> kinds{{.forward = Four::of(3), .backward = {}, .gather = Four::of(2), .reduce = {}}};
  const std::vector<SlotRun> runs{{0, 2}};
  EXPECT_DOUBLE_EQ(forward_seconds(runs, kinds, {}).median(), 2 + 3 + 3);
  EXPECT_DOUBLE_EQ(forward_seconds(runs, kinds, {.prefetch = 0}).median(), 2 + 3 + 2 + 3);
  EXPECT_DOUBLE_EQ(forward_seconds(runs, kinds, {.gathers = false}).median(), 3 + 3);
}

TEST(StagePass, EqualsTheWalkOverItsSlots) {
  Dice dice;
  for (int round = 0; round < 3000; ++round) {
    std::vector<SlotSeconds> kinds(static_cast<std::size_t>(dice.whole(1, 4)));
    for (SlotSeconds& k : kinds) {
      k = {dice.four(4), dice.four(4), dice.four(5), dice.four(5)};
      if (dice.whole(0, 2) == 0) k.gather = {};
      if (dice.whole(0, 2) == 0) k.reduce = {};
    }
    std::vector<SlotRun> runs(static_cast<std::size_t>(dice.whole(1, 5)));
    for (SlotRun& r : runs) r = {static_cast<std::int32_t>(dice.whole(0, static_cast<std::int64_t>(kinds.size()) - 1)), static_cast<std::int32_t>(dice.whole(1, 6))};
    const PassOptions options{.gathers = dice.whole(0, 3) > 0, .first_is_there = dice.whole(0, 1) == 0, .prefetch = dice.whole(0, 3)};
    const Four forward = forward_seconds(runs, kinds, options), backward = backward_seconds(runs, kinds, options);
    for (std::size_t lane = 0; lane < 4; ++lane) {
      std::vector<double> f, b, g, r;
      for (const SlotRun& run : runs)
        for (int i = 0; i < run.count; ++i) {
          const SlotSeconds& k = kinds[static_cast<std::size_t>(run.kind)];
          f.push_back(k.forward.v[lane]), b.push_back(k.backward.v[lane]), r.push_back(k.reduce.v[lane]), g.push_back(options.gathers ? k.gather.v[lane] : 0);
        }
      std::vector<double> gf = g;
      if (options.first_is_there) gf.front() = 0;
      ASSERT_NEAR(forward.v[lane], walk(f, gf, std::vector<double>(f.size(), 0), options.prefetch), 1e-9) << round;
      std::reverse(b.begin(), b.end()), std::reverse(g.begin(), g.end()), std::reverse(r.begin(), r.end());
      if (options.first_is_there) g.front() = 0;
      ASSERT_NEAR(backward.v[lane], walk(b, g, r, options.prefetch), 1e-9) << round;
    }
  }
}

// Kinds 2 and 3 differ from 1 in compute alone.
TEST(StagePass, IsASumOverGroupsWhereAllSlotsGatherOrNoneDoes) {
  Dice dice;
  int sums = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<SlotSeconds> kinds(static_cast<std::size_t>(dice.whole(1, 4)));
    const double most = dice.whole(0, 1) == 0 ? 0 : 2;
    for (SlotSeconds& k : kinds) k = {dice.four(4), dice.four(4) + Four::of(1), dice.four(5), dice.four(most)};
    if (dice.whole(0, 3) == 0) kinds.front().gather = {};
    if (dice.whole(0, 1) == 0) kinds.front().backward = {};   // a frozen embedding
    std::vector<std::size_t> weight_of;
    std::vector<WeightSeconds> weights;
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      if (k > 1) kinds[k].gather = kinds[1].gather, kinds[k].reduce = kinds[1].reduce;
      weight_of.push_back(std::min<std::size_t>(k, 1));
      if (k < 2) weights.push_back({kinds[k].gather, kinds[k].reduce});
    }
    std::vector<SlotRun> runs(static_cast<std::size_t>(dice.whole(1, 9)));
    for (SlotRun& r : runs) r = {static_cast<std::int32_t>(dice.whole(kinds.size() > 1 && &r != &runs.front() ? 1 : 0, static_cast<std::int64_t>(kinds.size()) - 1)), static_cast<std::int32_t>(dice.whole(1, 6))};
    const PassOptions options{.gathers = dice.whole(0, 2) > 0, .first_is_there = dice.whole(0, 1) == 0, .prefetch = dice.whole(0, 2)};
    for (const bool backward : {false, true}) {
      const PassSums sums_of(runs, kinds, weight_of);
      const auto sum = backward ? sums_of.backward(weights, options) : sums_of.forward(weights, options);
      if (!sum) continue;
      ++sums;
      const Four walked = backward ? backward_seconds(runs, kinds, options) : forward_seconds(runs, kinds, options);
      for (std::size_t lane = 0; lane < 4; ++lane) ASSERT_NEAR(sum->v[lane], walked.v[lane], 1e-9) << round;
    }
  }
  EXPECT_GT(sums, 1500);
}

TEST(PipelineStep, EqualsThePlayOfEveryPass) {
  Dice dice;
  PipelineRoom room;
  for (int round = 0; round < 1500; ++round) {
    const auto p = static_cast<std::size_t>(dice.whole(1, 9));
    const std::int64_t m = static_cast<std::int64_t>(p) + dice.whole(0, 70);
    std::vector<StageSeconds> stages(p);
    // Often equal stages, as pipelines are, and often none that gathers again.
    const bool equal = dice.whole(0, 2) == 0, again = dice.whole(0, 1) == 0;
    for (std::size_t s = 0; s < p; ++s) {
      stages[s] = {dice.four(3), dice.four(3), {}, {}};
      if (equal && s > 0) stages[s] = stages[0];
      stages[s].forward_again = stages[s].forward + (again ? dice.four(1) : Four{});
      stages[s].backward_again = stages[s].backward + (again ? dice.four(1) : Four{});
    }
    const Four exchange = dice.whole(0, 1) == 0 ? Four{} : dice.four(0.5);
    const Four fast = pipeline_step(stages, exchange, m, room), floor = pipeline_floor(stages, exchange, m);
    for (std::size_t lane = 0; lane < 4; ++lane) {
      StagePasses passes;
      for (const StageSeconds& s : stages) {
        passes.forward.push_back(s.forward.v[lane]), passes.backward.push_back(s.backward.v[lane]);
        passes.forward_again.push_back(s.forward_again.v[lane]), passes.backward_again.push_back(s.backward_again.v[lane]);
      }
      const double played = pipeline_seconds(passes, exchange.v[lane], m);
      ASSERT_NEAR(fast.v[lane], played, 1e-10 * played) << "round " << round << ", " << p << " stages, " << m << " micro-batches";
      ASSERT_LE(floor.v[lane], played * (1 + 1e-12));
    }
  }
}

// Long pipelines of nearly equal stages, whose four lanes go round circles of different length.
TEST(PipelineStep, EqualsThePlayWhereEachLaneRepeatsAfterItsOwnNumberOfPasses) {
  Dice dice;
  PipelineRoom room;
  for (int round = 0; round < 60; ++round) {
    const auto p = static_cast<std::size_t>(dice.whole(10, 70));
    const std::int64_t m = static_cast<std::int64_t>(p) + dice.whole(0, 600);
    std::vector<StageSeconds> stages(p);
    for (StageSeconds& s : stages) {
      s.forward = Four::of(1) + dice.four(0.02), s.backward = Four::of(2) + dice.four(0.02);
      s.forward_again = s.forward, s.backward_again = s.backward;
    }
    const Four exchange = dice.four(0.02), fast = pipeline_step(stages, exchange, m, room);
    for (std::size_t lane = 0; lane < 4; ++lane) {
      std::vector<double> forward, backward;
      for (const StageSeconds& s : stages) forward.push_back(s.forward.v[lane]), backward.push_back(s.backward.v[lane]);
      const double played = pipeline_seconds(forward, backward, exchange.v[lane], m);
      ASSERT_NEAR(fast.v[lane], played, 1e-11 * played) << "round " << round << ", " << p << " stages, " << m << " micro-batches, lane " << lane;
    }
  }
}

}  // namespace
}  // namespace moeplan
