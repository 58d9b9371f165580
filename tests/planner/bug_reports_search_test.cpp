// Public bug reports on search, expert load and step time, each held to the right answer.

#include <gtest/gtest.h>

#include <numeric>

#include "core/error.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"
#include "planner/rules.hpp"
#include "planner/space.hpp"
#include "sim/load/placement.hpp"

namespace moeplan {
namespace {

Problem problem(const std::string& model, std::int64_t gpus) {
  ProblemRequest r;
  r.model = model;
  r.device = "h200";
  r.gpus = gpus;
  return make_problem(MOEPLAN_SOURCE "/configs", r);
}

/// What an InputError says; empty if there is none.
template <class F>
std::string refusal(const F& f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

// sglang #3345: 18,432 columns in blocks of 128 over 32 ranks are 4.5 blocks each. Every candidate that is priced cuts whole columns, and a
// degree that does not is refused in the model's numbers.
TEST(BugReports, BL013ADegreeThatDoesNotCutTheModelIsRefusedInItsNumbers) {
  SearchOptions options;
  options.pins.tp = 3;
  const std::string why = refusal([&] { (void)plan(problem("deepseek-v3", 24), options); });
  EXPECT_NE(why.find("128 attention heads do not divide over 3 tensor ranks"), std::string::npos) << why;
}

// sglang #8253: 290 slots over 32 ranks are refused with both numbers; 288 go.
TEST(BugReports, BL050SlotsThatDoNotSpreadAreRefusedWithTheNumbers) {
  const Shares even(256, 1.0 / 256);
  const std::string why = refusal([&] { (void)balanced(even, 32, 290); });
  EXPECT_NE(why.find("290"), std::string::npos) << why;
  EXPECT_NE(why.find("32"), std::string::npos) << why;
  EXPECT_EQ(balanced(even, 32, 288).slots_per_rank(), 9);
  SearchOptions options;
  options.pins.ep = 32;
  options.pins.expert_replicas = 34;
  options.pins.placement = ExpertPlacement::balanced;
  const std::string searched = refusal([&] { (void)plan(problem("deepseek-v3", 256), options); });
  EXPECT_NE(searched.find("256 experts and 34 replicas do not divide over 32 expert ranks"), std::string::npos) << searched;
}

// vllm #18343: 8 experts, 12 slots, 4 ranks, one expert a hundred times as hot: every expert has a slot, every slot an expert.
TEST(BugReports, BL052EverySlotHoldsAnExpertAndEveryExpertHasOne) {
  Shares load(8, 1);
  load[0] = 100;
  const double sum = std::accumulate(load.begin(), load.end(), 0.0);
  for (double& l : load) l /= sum;
  const Placement p = balanced(load, 4, 12);
  ASSERT_EQ(p.expert.size(), 12U);
  std::vector<int> slots(8, 0);
  for (const std::int64_t e : p.expert) {
    ASSERT_GE(e, 0);
    ASSERT_LT(e, 8);
    ++slots[static_cast<std::size_t>(e)];
  }
  for (const int n : slots) EXPECT_GE(n, 1);
  EXPECT_EQ(slots[0], 5) << "every extra slot goes to the hot expert";
}

// calculate-flops.pytorch #24: parts sum to the whole, whatever is counted.
TEST(BugReports, BL040PartsSumToTheWhole) {
  const Answer a = plan(problem("qwen3-30b-a3b", 8), {});
  for (const RankedPlan& r : a.plans) {
    double parts = 0;
    for (const Seconds t : r.forecast.time) parts += t.value;
    EXPECT_NEAR(parts, r.forecast.step.value, 1e-9 * parts);
    const double devices = r.plan.parallelism.world();
    EXPECT_NEAR(r.forecast.flops_per_device.value * devices * r.forecast.step.value, r.forecast.model_flops.value, 1e-6 * r.forecast.model_flops.value);
  }
}

// SimAI #9: what a plan file writes is read back; a kind that nobody knows is an error that names field and value.
TEST(BugReports, BL041APlanFileIsReadBackAndAnUnknownKindIsNamed) {
  const Problem p = problem("qwen3-30b-a3b", 8);
  SearchOptions options;
  options.pins.ep = 8;
  options.pins.route = DispatchRoute::direct;
  const Answer a = plan(p, options);
  Json file = plan_file(p, a.plans.front());
  EXPECT_EQ(read_plan_file(file, "plan.json").plan, a.plans.front().plan);
  file["plan"]["experts"]["route"] = "ALLTOALL_XY";
  const std::string why = refusal([&] { (void)read_plan_file(file, "plan.json"); });
  EXPECT_NE(why.find("route"), std::string::npos) << why;
  EXPECT_NE(why.find("ALLTOALL_XY"), std::string::npos) << why;
}

}  // namespace
}  // namespace moeplan
