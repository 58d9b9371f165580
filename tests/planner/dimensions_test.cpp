/// The planner's closed forms over tensor and context degrees against the lowered program and the engine, and what must hold for
/// any numbers.

#include <gtest/gtest.h>

#include <set>

#include "core/error.hpp"
#include "planner/prices.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"
#include "planner/rules.hpp"
#include "planner/space.hpp"
#include "sim/engine/costs.hpp"
#include "sim/engine/engine.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan {
namespace {

Problem problem(const std::string& model, std::int64_t gpus, std::int64_t sequence = 16384, Training method = Training::lora) {
  ProblemRequest r;
  r.model = model;
  r.device = "h200";
  r.gpus = gpus;
  r.method = method;
  r.load = "uniform";
  r.sequence_length = sequence;
  return make_problem(MOEPLAN_SOURCE "/configs", r);
}

Plan a_plan(const Problem& p, Parallelism parallelism, Recompute recompute = Recompute::full, std::int64_t micro_batches = 4) {
  Plan plan;
  plan.parallelism = parallelism;
  plan.micro_batches = micro_batches;
  plan.stage_layers = even_stages(static_cast<std::int64_t>(p.model.layers.size()), parallelism.pp);
  plan.recompute = recompute;
  return plan;
}

/// The fullest stage by walking the lowered programs.
MemoryBreakdown walked(const Problem& p, const Plan& plan) {
  MemoryBreakdown worst;
  for (int stage = 0; stage < plan.parallelism.pp; ++stage) {
    const MemoryBreakdown m = memory(lower(p, plan, stage * plan.parallelism.stage_ranks()), p, plan);
    if (stage == 0 || m.peak() > worst.peak()) worst = m;
  }
  return worst;
}

struct InEngine {
  double seconds, rounding;
};
InEngine simulated(const Problem& p, const Plan& plan) {
  const Prices prices = prices_of(p, plan);
  const Links links(p.cluster, p.runtime, {}, p.profile);
  const Costs costs = model_costs(prices, links, plan.parallelism);
  std::vector<Program> stages;
  for (int s = 0; s < plan.parallelism.pp; ++s) stages.push_back(lower(p, plan, s * plan.parallelism.stage_ranks()));
  const Job job = make_job(folded(stages, plan.parallelism, costs), plan.parallelism);
  const Played played = play(job, {});
  const double seconds = to_seconds(played.step).value;
  return {seconds, 0.5e-12 * static_cast<double>(played.events) + 1e-12 * seconds};
}

/// Plans over the dimensions, one model each that has what they cut.
struct Shape {
  const char* model;
  Parallelism parallelism;
  ContextExchange exchange;
  StatePassing passing;
};
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all{
      {"qwen3-30b-a3b", {.tp = 4, .ep = 8, .dp_shard = 4}, ContextExchange::ring, StatePassing::scan},
      {"qwen3-30b-a3b", {.pp = 2, .tp = 2, .cp = 2, .ep = 4, .dp_shard = 2}, ContextExchange::all_to_all, StatePassing::scan},
      {"qwen3-30b-a3b", {.cp = 4, .ep = 16, .dp_shard = 4}, ContextExchange::ring, StatePassing::scan},
      {"kimi-linear-48b-a3b", {.cp = 4, .ep = 8, .dp_replicate = 2, .dp_shard = 2}, ContextExchange::ring, StatePassing::chain},
      {"mixtral-8x7b", {.tp = 2, .ep = 4, .etp = 2, .dp_shard = 8}, ContextExchange::ring, StatePassing::scan},
      {"qwen3-next-80b-a3b", {.tp = 2, .cp = 2, .ep = 8, .dp_shard = 4}, ContextExchange::ring, StatePassing::scan},
  };
  return all;
}

TEST(Dimensions, MemoryInClosedFormEqualsTheWalkOverTheProgram) {
  for (const Shape& s : shapes())
    for (const Recompute r : {Recompute::none, Recompute::full}) {
      const Problem p = problem(s.model, 16);
      Plan plan = a_plan(p, s.parallelism, r);
      plan.context_exchange = s.exchange;
      plan.state_passing = s.passing;
      EXPECT_EQ(first_rejection(p, plan), std::nullopt);
      EXPECT_EQ(forecast(p, plan).memory.at_peak, walked(p, plan).at_peak) << s.model;
    }
}

TEST(Dimensions, TimeInClosedFormEqualsTheEngine) {
  for (const Shape& s : shapes()) {
    const Problem p = problem(s.model, 16);
    Plan plan = a_plan(p, s.parallelism);
    plan.context_exchange = s.exchange;
    plan.state_passing = s.passing;
    const InEngine e = simulated(p, plan);
    EXPECT_NEAR(e.seconds, forecast(p, plan, false, false).step.value, e.rounding) << s.model;
  }
}

TEST(Dimensions, ModelFlopsDoNotDependOnTheLayout) {
  const Problem p = problem("deepseek-v2-lite", 16);
  const double one = forecast(p, a_plan(p, {.ep = 8, .dp_shard = 16})).model_flops.value;   // 16 data ranks
  EXPECT_NEAR(forecast(p, a_plan(p, {.tp = 4, .ep = 8, .dp_shard = 4})).model_flops.value, one / 4, one * 1e-9);
  EXPECT_NEAR(forecast(p, a_plan(p, {.cp = 4, .ep = 8, .dp_shard = 4})).model_flops.value, one / 4, one * 1e-9);
}

TEST(Dimensions, MoreContextRanksNeverHoldMoreActivations) {
  const Problem p = problem("qwen3-30b-a3b", 16, 65536);
  for (const ContextExchange exchange : {ContextExchange::ring, ContextExchange::all_to_all}) {
    std::int64_t before = std::numeric_limits<std::int64_t>::max();
    for (const int cp : {1, 2, 4}) {
      Plan plan = a_plan(p, {.cp = cp, .ep = 8, .dp_shard = 16 / cp}, Recompute::none);
      plan.context_exchange = exchange;
      const std::int64_t here = forecast(p, plan).memory[MemoryCategory::activations].value;
      EXPECT_LT(here, before) << cp;
      before = here;
    }
  }
}

TEST(Dimensions, HalvingBandwidthNeverSpeedsUp) {
  for (const Shape& s : shapes()) {
    Problem p = problem(s.model, 16);
    Plan plan = a_plan(p, s.parallelism);
    plan.context_exchange = s.exchange;
    plan.state_passing = s.passing;
    const Seconds fast = forecast(p, plan).step;
    for (LinkTier& t : p.cluster.tiers) t.bandwidth = t.bandwidth * 0.5;
    EXPECT_GE(forecast(p, plan).step, fast) << s.model;
  }
}

// All divisors of eight devices that cut 32 heads, and all context degrees that leave 4096 tokens a rank.
TEST(Dimensions, TensorAndContextDegreesAreSearched) {
  Problem p = problem("qwen3-8b", 8, 32768);
  SearchOptions o;
  o.pins.pp = 1;
  o.pins.recompute = Recompute::full;
  o.pins.micro_batch = 1;
  std::set<int> tps, cps;
  for (const CandidateGroup& g : candidates(p, o))
    for (const Plan& plan : g.plans) tps.insert(plan.parallelism.tp), cps.insert(plan.parallelism.cp);
  EXPECT_EQ(tps, (std::set<int>{1, 2, 4, 8}));
  EXPECT_EQ(cps, (std::set<int>{1, 2, 4, 8}));   // 4096 tokens each at 8
}

TEST(Dimensions, TensorGroupsStayInTheScaleUpDomainUnlessPinned) {
  const Problem p = problem("qwen3-8b", 16, 4096);
  SearchOptions o;
  o.pins.pp = 1;
  o.pins.recompute = Recompute::full;
  o.pins.micro_batch = 1;
  for (const CandidateGroup& g : candidates(p, o))
    for (const Plan& plan : g.plans) EXPECT_LE(plan.parallelism.tp, 8);
  o.pins.tp = 16;
  EXPECT_FALSE(candidates(p, o).empty());   // 32 heads divide, 8 key-value heads go into 16 ranks twice
}

TEST(Dimensions, DegreesThatDoNotCutTheModelAreRefusedInItsNumbers) {
  SearchOptions o;
  o.pins.tp = 3;
  const Problem three = problem("qwen3-8b", 8);
  EXPECT_THROW((void)plan(three, o), InputError);   // 3 does not divide 8 devices
  Plan plan = a_plan(three, {.tp = 3});
  const auto no = rules_of::tensor_divides(three, plan);
  ASSERT_TRUE(no);
  EXPECT_EQ(*no, "32 attention heads do not divide over 3 tensor ranks");
  plan.parallelism = {.cp = 16};
  plan.context_exchange = ContextExchange::all_to_all;
  EXPECT_EQ(*rules_of::heads_exchange(three, plan), "8 key-value heads cannot be exchanged over 16 context x 1 tensor ranks");
}

}  // namespace
}  // namespace moeplan
