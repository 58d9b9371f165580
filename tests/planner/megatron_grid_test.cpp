// The grid of Calculon's public search, counted.

#include "bench/megatron_grid.hpp"

#include <gtest/gtest.h>

namespace moeplan {
namespace {

using namespace bench;

std::int64_t count(const DenseGrid& g) {
  std::int64_t n = 0;
  for_each_execution(g, [](const Execution&) {}, [&](const Execution&) { ++n; });
  return n;
}

// calculon-ai/calculon caa4b11, llm-optimal-execution, megatron-1T, 4,096 GPUs, batch 4,096, a100_80g without second memory.
TEST(MegatronGrid, HasAsManyExecutionsAsCalculonCounts) { EXPECT_EQ(count({}), 1053228); }

// One device, one block, one head, one sequence: three ways to recompute, three exchanges, the gather again or not where it could be.
TEST(MegatronGrid, OfOneDeviceIsCountedByHead) {
  EXPECT_EQ(count({.devices = 1, .batch = 1, .hidden = 1, .heads = 1, .blocks = 1, .sequence = 1, .networks = 1}), 3 + 4 + 4);
}

TEST(MegatronGrid, HoldsThePlanThatCalculonFindsBest) {
  int seen = 0;
  for_each_execution({}, [](const Execution&) {}, [&](const Execution& e) {
    seen += e.tp == 8 && e.pp == 16 && e.dp == 32 && e.interleaving == 8 && e.micro_batch == 2 && e.repeat == Repeat::attention;
  });
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace moeplan
