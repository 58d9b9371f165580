/// Whole steps under a meter.
#include "executor/calibrate/mix.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "tests/executor/run/tiny.hpp"

namespace moeplan::test {
namespace {

TEST(HoldPlan, watches_steps_at_the_load_that_their_routers_made) {
  const Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 2), lora(8));
  const Plan of = plan(p);
  const auto start = std::chrono::steady_clock::now();
  const PowerMeter meter{.joules = [&] { return 25 * std::floor(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 0.05); }, .clock = [] { return 1700.0; }, .limit = 700};
  const auto backend = cpu_backend(CpuStorage::wide);
  const std::optional<HeldPlan> held = hold_plan(p, of, *backend, meter);
  ASSERT_TRUE(held);
  EXPECT_EQ(held->step.clock, 1700);
  EXPECT_NEAR(held->step.watts, 500, 50);
  EXPECT_GT(held->step.seconds, 0);
  const auto* trace = std::get_if<TraceLoad>(&held->load.distribution);
  ASSERT_NE(trace, nullptr);
  ASSERT_EQ(trace->counts.size(), p.model.layers.size());
  for (const std::vector<double>& layer : trace->counts) {
    ASSERT_EQ(layer.size(), 8u);
    double copies = 0;
    for (const double n : layer) copies += n;
    EXPECT_EQ(copies, static_cast<double>(of.micro_batches * of.micro_batch * p.workload.sequence_length * 3)) << "each token to three experts";
  }
  const PowerMeter dead{.joules = []() -> std::optional<double> { return std::nullopt; }, .clock = []() -> std::optional<double> { return std::nullopt; }, .limit = 700};
  EXPECT_FALSE(hold_plan(p, of, *backend, dead));
}

}  // namespace
}  // namespace moeplan::test
