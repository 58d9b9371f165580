#include "planner/recommend.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "planner/problem.hpp"
#include "planner/sensitivity.hpp"

namespace moeplan {
namespace {

DeviceType on_device(const std::string& model, const std::string& device, Training method = Training::lora, double price = 0) {
  ProblemRequest r;
  r.model = model;
  r.device = device;
  r.gpus = 16;
  r.method = method;
  r.load = "uniform";
  r.tokens = 1e9;
  DeviceType out{make_problem(MOEPLAN_SOURCE "/configs", r)};
  if (price > 0) out.problem.cluster.price = DollarsPerHour{price};
  return out;
}

TEST(DeviceCounts, AreHalvesOfAMachineThenMachines) {
  EXPECT_EQ(device_counts(8, 64), (std::vector<std::int64_t>{1, 2, 4, 8, 16, 24, 32, 48, 64}));
  EXPECT_EQ(device_counts(6, 20), (std::vector<std::int64_t>{1, 2, 6, 12, 18}));
}

// Full fine-tuning of 30.5 B parameters takes 16 bytes each: 488 GB, so four H200 of 141 GB at the least.
TEST(Recommend, FewestDevicesComeWithTheProofOfTheCountBelow) {
  const Recommendation r = recommend({on_device("qwen3-30b-a3b", "h200", Training::full)}, {.search = {}, .deadline = {}, .budget = {}, .most_devices = 16});
  ASSERT_EQ(r.least.size(), 1u);
  const LeastDevices& least = r.least.front();
  EXPECT_EQ(least.devices, 4);
  EXPECT_EQ(least.below, 2);
  ASSERT_TRUE(least.proof);
  EXPECT_GT(least.proof->need, least.proof->have);
  for (const ClusterOption& o : r.options) EXPECT_GE(o.cluster.devices(), least.devices);
}

TEST(Recommend, SmallestCheapestAndFastestAreAmongThoseThatMeetTheDeadline) {
  RecommendOptions options;
  options.most_devices = 32;
  const DeviceType type = on_device("qwen3-30b-a3b", "h200", Training::lora, 3);
  const Recommendation all = recommend({type}, options);
  ASSERT_TRUE(all.smallest && all.cheapest && all.fastest);
  const auto seconds = [&](const ClusterOption& o) { return o.best.forecast.device_hours_interval->high * 3600 / static_cast<double>(o.cluster.devices()); };
  const double one = seconds(all.options[*all.smallest]);
  options.deadline = one / 3;   // the smallest cluster is three times too slow
  const Recommendation soon = recommend({type}, options);
  ASSERT_TRUE(soon.smallest && soon.cheapest && soon.fastest);
  EXPECT_GT(soon.options[*soon.smallest].cluster.devices(), all.options[*all.smallest].cluster.devices());
  for (const std::size_t i : {*soon.smallest, *soon.cheapest, *soon.fastest}) EXPECT_LE(seconds(soon.options[i]), *options.deadline);
  for (const ClusterOption& o : soon.options) {
    if (!o.meets) continue;
    EXPECT_LE(soon.options[*soon.cheapest].best.forecast.cost_interval->high, o.best.forecast.cost_interval->high * (1 + 1e-9));
    EXPECT_LE(seconds(soon.options[*soon.fastest]), seconds(o) * (1 + 1e-9));
  }
  options.deadline = 1;
  EXPECT_FALSE(recommend({type}, options).smallest) << "nothing trains a billion tokens in a second";
}

TEST(Recommend, ADeadlineWithoutTokensAndABudgetWithoutAPriceAreRefused) {
  DeviceType type = on_device("tiny-kimi-k3", "h200");
  type.problem.cluster.price.reset();
  RecommendOptions options;
  options.most_devices = 8;
  options.budget = 100;
  EXPECT_THROW((void)recommend({type}, options), InputError);
  type.problem.workload.tokens.reset();
  options.budget.reset();
  options.deadline = 100;
  EXPECT_THROW((void)recommend({type}, options), InputError);
}

TEST(Recommend, NothingFitsWithTheCertificateOfTheLargestCount) {
  const Recommendation r = recommend({on_device("kimi-k3", "h200", Training::full)}, {.search = {}, .deadline = {}, .budget = {}, .most_devices = 16});
  EXPECT_TRUE(r.options.empty());
  ASSERT_TRUE(r.infeasible);
  EXPECT_GT(r.infeasible->need, r.infeasible->have);
}

// More of a rate helps one plan more than the other; where they cross, the other wins.
TEST(Sensitivity, AtTheThresholdTheOtherPlanWinsAndBeforeItDoesNot) {
  const DeviceType type = on_device("qwen3-30b-a3b", "h200");
  SearchOptions o;
  o.top = 4;
  const Answer a = plan(type.problem, o);
  ASSERT_GT(a.plans.size(), 2u);
  std::vector<Plan> others;
  for (std::size_t i = 1; i < a.plans.size() && others.size() < 3; ++i) others.push_back(a.plans[i].plan);
  for (const Threshold& t : thresholds(type.problem, a.plans.front().plan, others, 0)) {
    if (t.number != "bf16 peak") continue;
    const auto gap = [&](double factor) {
      Problem p = type.problem;
      p.cluster.device.peak.at("bf16") = p.cluster.device.peak.at("bf16") * factor;
      return forecast(p, t.plan).tokens_per_second / forecast(p, a.plans.front().plan).tokens_per_second;
    };
    EXPECT_GT(gap(t.factor), 1);
    EXPECT_LE(gap(std::pow(t.factor, 0.9)), 1 + 1e-9);
  }
  EXPECT_EQ(distance(others.front(), others.front()), 0);
  EXPECT_GT(distance(a.plans.front().plan, others.front()), 0);
}

TEST(Sensitivity, MoreMemoryNamesAPlanThatDoesNotFitToday) {
  const DeviceType type = on_device("qwen3-30b-a3b", "h200", Training::full);
  Problem small = type.problem;
  small.cluster.device.memory = {small.cluster.device.memory.value / 2};
  const Answer a = plan(small, {});
  ASSERT_FALSE(a.plans.empty());
  if (const auto more = more_memory(small, a.plans.front().forecast, {})) {
    EXPECT_GT(more->plan.forecast.memory_p95.peak(), small.cluster.device.memory);
    EXPECT_GT(more->faster, 0.005);
  }
}

}  // namespace
}  // namespace moeplan
