/// Real text is learned: 200 steps over the first chapters of Genesis, byte by byte.

#include <gtest/gtest.h>

#include "tests/executor/run/text.hpp"

namespace moeplan {
namespace {

using namespace test;

/// Bytes of this text carry 4.3 bits (2.98 nats) by their frequencies alone; an untrained model gives each of 128 the
/// same, 4.85 nats.
TEST(Text, TwoHundredStepsLearnMoreThanHowOftenEachLetterComes) {
  TrainOptions options;
  options.steps = 200, options.learning_rate = 1e-2, options.warmup = 10;
  const Problem p = problem(of_bytes(shrunk(shipped("qwen/qwen3-30b-a3b.json"))), full(64));
  TinyRun run(p, plan(p, 4), cpu_backend(CpuStorage::as_planned), options);
  const std::vector<double> losses = losses_over_text(run, 200);
  EXPECT_NEAR(losses.front(), 4.85, 0.1);
  EXPECT_LT(mean(losses, 180, 20), 2.8);
}

}  // namespace
}  // namespace moeplan
