#include "sim/engine/gantt.hpp"

#include <gtest/gtest.h>

#include "tests/sim/hand_made_job.hpp"

namespace moeplan {
namespace {

using namespace testing;

// Two stages, two micro-batches, f = b = 100: 6 slices of 100. Stage 1: idle, F B F B, idle.
TEST(Gantt, ShowsWhatEachStageDoesInEachSlice) {
  const Job job = pipeline(2, 2, 100, 100, 0);
  const std::string text = gantt(timeline(job, play(job)), 12);
  EXPECT_NE(text.find("stage   0 FFFF..BB..BB\n"), std::string::npos) << text;
  EXPECT_NE(text.find("stage   1 ..FFBBFFBB..\n"), std::string::npos) << text;
}

TEST(Gantt, AnExchangeThatNothingHidesIsShown) {
  Job job;
  pass(job, "forward of block", {compute(50), communicate(job, 50, {0})});
  job.programs.push_back({{run(0)}});
  line_up(job);
  EXPECT_NE(gantt(timeline(job, play(job)), 10).find("stage   0 FFFFFeeeee\n"), std::string::npos);
}

TEST(Gantt, OfNothingIsEmpty) { EXPECT_EQ(gantt(StepTimeline{}), ""); }

}  // namespace
}  // namespace moeplan
