#include <gtest/gtest.h>

#include "planner/evaluate.hpp"
#include "planner/space.hpp"

namespace moeplan {
namespace {

TEST(Pipeline, OneStageIsTheSumOfItsMicroBatches) { EXPECT_DOUBLE_EQ(pipeline_seconds({1}, {2}, 0, 4), 12); }

// Equal stages: (m + p - 1)(F + B), Narayanan et al. 2021.
TEST(Pipeline, EqualStagesTakeTheBubbleOfOneForwardOneBackward) {
  for (const int p : {2, 3, 8})
    for (const int m : {8, 16}) EXPECT_DOUBLE_EQ(pipeline_seconds(std::vector<double>(p, 1), std::vector<double>(p, 2), 0, m), 3.0 * (m + p - 1));
}

// Two stages of 1+1 and 3+3, three micro-batches: the slow stage starts after the fast forward (1), works 3 x 6, and the fast backward follows (1).
TEST(Pipeline, TheSlowestStageSetsThePace) { EXPECT_DOUBLE_EQ(pipeline_seconds({1, 3}, {1, 3}, 0, 3), 1 + 18 + 1); }

// One micro-batch crosses p - 1 boundaries forward and back.
TEST(Pipeline, EachBoundaryIsCrossedTwice) { EXPECT_DOUBLE_EQ(pipeline_seconds({1, 1, 1}, {1, 1, 1}, 0.5, 1), 6 + 4 * 0.5); }

TEST(Stages, AreEqualAndTheRemainderAvoidsEmbeddingAndHead) {
  EXPECT_EQ(even_stages(8, 4), (std::vector<std::int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(even_stages(93, 4), (std::vector<std::int64_t>{23, 24, 23, 23}));
  EXPECT_EQ(even_stages(5, 2), (std::vector<std::int64_t>{3, 2}));
}

}  // namespace
}  // namespace moeplan
