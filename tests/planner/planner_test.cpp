#include "planner/planner.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.hpp"
#include "core/write.hpp"
#include "planner/problem.hpp"
#include "planner/space.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan {
namespace {

Problem problem(const std::string& model, std::int64_t gpus, Training method = Training::lora, const std::string& load = "uniform") {
  ProblemRequest r;
  r.model = model;
  r.device = "h200";
  r.gpus = gpus;
  r.method = method;
  r.load = load;
  return make_problem(MOEPLAN_SOURCE "/configs", r);
}

Plan a_plan(const Problem& p, Parallelism parallelism, Recompute recompute = Recompute::full, std::int64_t micro_batches = 8) {
  Plan plan;
  plan.parallelism = parallelism;
  plan.micro_batches = micro_batches;
  plan.stage_layers = even_stages(static_cast<std::int64_t>(p.model.layers.size()), parallelism.pp);
  plan.recompute = recompute;
  return plan;
}

/// Peak of every stage by walking the lowered program.
MemoryBreakdown walked(const Problem& p, const Plan& plan) {
  MemoryBreakdown worst;
  for (int stage = 0; stage < plan.parallelism.pp; ++stage) {
    const Program program = lower(p, plan, stage * plan.parallelism.stage_ranks());
    EXPECT_EQ(verify(program), std::vector<std::string>{});
    const MemoryBreakdown m = memory(program, p, plan);
    if (stage == 0 || m.peak() > worst.peak()) worst = m;
  }
  return worst;
}

class ClosedForm : public testing::TestWithParam<std::tuple<const char*, Recompute, bool>> {};

// The planner's closed form and the walk over the lowered program are the same bytes, category by category.
TEST_P(ClosedForm, EqualsTheWalkOverTheProgram) {
  const auto& [model, recompute, reshard] = GetParam();
  const Problem p = problem(model, 16);
  for (const Parallelism& par : {Parallelism{.pp = 1, .ep = 8, .dp_replicate = 1, .dp_shard = 16, .expert_shard = 2}, Parallelism{.pp = 2, .ep = 4, .dp_replicate = 2, .dp_shard = 4}}) {
    Plan plan = a_plan(p, par, recompute);
    plan.reshard_after_forward = reshard;
    const MemoryBreakdown walk = walked(p, plan);
    const Forecast f = forecast(p, plan);
    EXPECT_EQ(to_json(std::vector<std::int64_t>{f.memory.peak().value}), to_json(std::vector<std::int64_t>{walk.peak().value})) << f.memory.peak_at << " | " << walk.peak_at;
    EXPECT_EQ(f.memory.at_peak, walk.at_peak);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ClosedForm,
                         testing::Combine(testing::Values("qwen3-30b-a3b", "kimi-linear-48b-a3b", "tiny-kimi-k3"), testing::Values(Recompute::none, Recompute::selective, Recompute::full), testing::Bool()));

// 2 x 2.7227 T / 64 = 85.1 GB of bf16 experts, the rest of K3 (57 B) over 128 ranks: 0.9 GB.
TEST(Memory, KimiK3ExpertsAtEp64TakeEightyFiveGigabytes) {
  const Problem p = problem("kimi-k3", 128);
  const Forecast f = forecast(p, a_plan(p, {.pp = 1, .ep = 64, .dp_shard = 128}));
  EXPECT_NEAR(static_cast<double>(f.memory[MemoryCategory::weights].value), 2 * 2722740830208.0 / 64 + 2 * 57191004768.0 / 128, 0.01e9);
}

// MXFP4 stores 17 bytes per 32 weights.
TEST(Memory, Mxfp4ExpertsTakeSeventeenSixtyFourthsOfBf16) {
  const Problem p = problem("kimi-k3", 128);
  Plan plan = a_plan(p, {.pp = 1, .ep = 64, .dp_shard = 128});
  const std::int64_t wide = forecast(p, plan).memory[MemoryCategory::weights].value;
  plan.frozen_storage = DType::mxfp4;
  const std::int64_t packed = forecast(p, plan).memory[MemoryCategory::weights].value;
  EXPECT_EQ(wide - packed, 2 * 2722740830208 / 64 * 47 / 64);
}

// AdamW on fp32 shards: 4 + 4 + 8 bytes for each of K3's parameters but the frozen vision tower and the score-bias buffers.
TEST(Memory, FullFineTuningTakesSixteenBytesAParameter) {
  const Problem p = problem("kimi-k3", 1024, Training::full);
  const Forecast f = forecast(p, a_plan(p, {.pp = 1, .ep = 64, .dp_shard = 1024, .expert_shard = 16}));
  const double states = static_cast<double>((f.memory[MemoryCategory::weights] + f.memory[MemoryCategory::optimizer]).value);
  EXPECT_NEAR(states, 12.0 * 2779484476000 / 1024 + 2.0 * 447358976 / 1024, 0.002e9);
}

TEST(Memory, MoreShardsNeverNeedMorePerDevice) {
  const Problem p = problem("qwen3-30b-a3b", 16);
  std::int64_t before = std::numeric_limits<std::int64_t>::max();
  for (const int shard : {1, 2, 4, 8, 16}) {
    const std::int64_t peak = forecast(p, a_plan(p, {.pp = 1, .ep = 8, .dp_replicate = 16 / shard, .dp_shard = shard})).memory.peak().value;
    // Sharding at all adds the gathered copies of two blocks; from there on more shards only help.
    if (shard > 2) {
      EXPECT_LE(peak, before) << shard;
    }
    before = peak;
  }
}

TEST(Memory, RecomputeTradesActivationsForTime) {
  const Problem p = problem("qwen3-30b-a3b", 16);
  const Parallelism par{.pp = 1, .ep = 8, .dp_shard = 16};
  const Forecast none = forecast(p, a_plan(p, par, Recompute::none)), selective = forecast(p, a_plan(p, par, Recompute::selective)), full = forecast(p, a_plan(p, par, Recompute::full));
  EXPECT_GT(none.memory[MemoryCategory::activations], selective.memory[MemoryCategory::activations]);
  EXPECT_GT(selective.memory[MemoryCategory::activations], full.memory[MemoryCategory::activations]);
  EXPECT_LT(none.step, full.step);
  EXPECT_EQ(none.model_flops, full.model_flops);
}

TEST(Load, SkewCostsTimeAndMemory) {
  const Problem even = problem("deepseek-v3", 64, Training::lora, "uniform"), skewed = problem("deepseek-v3", 64, Training::lora, "log-normal-v3");
  const Plan plan = a_plan(even, {.pp = 1, .ep = 32, .dp_shard = 64});
  const Forecast a = forecast(even, plan), b = forecast(skewed, plan);
  EXPECT_LT(a.step, b.step);
  EXPECT_LT(b.step, b.step_p95);
  EXPECT_LT(a.memory.peak(), b.memory.peak());
  EXPECT_LE(b.memory.peak(), b.memory_p95.peak());
}

TEST(Forecasts, TimePartsSumToTheStep) {
  const Problem p = problem("kimi-linear-48b-a3b", 16);
  for (const int pp : {1, 2}) {
    const Forecast f = forecast(p, a_plan(p, {.pp = pp, .ep = 8, .dp_shard = 16 / pp}));
    double sum = 0;
    for (const Seconds s : f.time) { EXPECT_GE(s.value, -1e-12); sum += s.value; }
    EXPECT_NEAR(sum, f.step.value, 1e-9);
  }
}

TEST(Forecasts, HalvingBandwidthNeverSpeedsUp) {
  Problem p = problem("qwen3-30b-a3b", 16);
  const Plan plan = a_plan(p, {.pp = 1, .ep = 16, .dp_shard = 16});
  const Seconds fast = forecast(p, plan).step;
  for (LinkTier& t : p.cluster.tiers) t.bandwidth = t.bandwidth * 0.5;
  EXPECT_GE(forecast(p, plan).step, fast);
}

Json answer_json(const Answer& a) {
  Json out = Json::array();
  for (const RankedPlan& r : a.plans) out.push_back({to_json(r.plan), r.forecast.step.value, r.forecast.memory.peak().value, r.forecast.memory_p95.peak().value});
  out.push_back(a.rejected);
  out.push_back(a.example);
  out.push_back(a.searched);
  return out;
}

TEST(Search, AnswersTheSameOnOneAndManyThreads) {
  const Problem p = problem("qwen3-30b-a3b", 16, Training::lora, "log-normal-v3");
  SearchOptions one, many;
  one.threads = 1;
  many.threads = 4;
  EXPECT_EQ(answer_json(plan(p, one)), answer_json(plan(p, many)));
}

TEST(Search, BestPlanIsTheFastestOfABruteForce) {
  const Problem p = problem("qwen3-30b-a3b", 8);
  SearchOptions options;
  options.pins.micro_batch = 2;
  const Answer a = plan(p, options);
  double best = 0;
  for (const CandidateGroup& g : candidates(p, options))
    for (const Plan& c : g.plans) {
      if (c.micro_batches < c.parallelism.pp || p.model.layers.size() < static_cast<std::size_t>(c.parallelism.pp)) continue;
      const Forecast f = forecast(p, c);
      if (f.memory_p95.peak() <= p.cluster.device.memory) best = std::max(best, f.tokens_per_second_interval.low);
    }
  EXPECT_GE(a.plans.front().forecast.tokens_per_second_interval.low, best * std::exp(-0.005));  // ties within the model's resolution go to less memory
}

TEST(Search, ParetoFrontHoldsNoDominatedPlan) {
  const Answer a = plan(problem("qwen3-30b-a3b", 16), {});
  ASSERT_FALSE(a.pareto.empty());
  for (const std::size_t i : a.pareto)
    for (const RankedPlan& r : a.plans)
      EXPECT_FALSE(r.forecast.tokens_per_second_interval.low > 1.01 * a.plans[i].forecast.tokens_per_second_interval.low && r.forecast.memory_p95.peak() < a.plans[i].forecast.memory_p95.peak());
}

TEST(Search, FullFineTuningOfK3DoesNotFit128H200) {
  const Answer a = plan(problem("kimi-k3", 128, Training::full), {});
  ASSERT_TRUE(a.infeasible);
  EXPECT_TRUE(a.plans.empty());
  EXPECT_GT(a.infeasible->need, a.infeasible->have);
  EXPECT_GT(a.infeasible->need.value, 16 * 2779484476000 / 128);   // 347 GB of states a device
  EXPECT_EQ(a.infeasible->largest.front().name, "optimizer");
  EXPECT_NE(a.infeasible->nearest_fix.find("devices"), std::string::npos);
}

// A machine has no network to the next one in its file, but two of them hold twice as much.
TEST(Search, OneMachineThatIsTooSmallIsAnsweredWithMoreOfThem) {
  const Answer answer = plan(problem("deepseek-v3", 4), {});
  ASSERT_TRUE(answer.infeasible);
  EXPECT_EQ(answer.infeasible->largest.front().name, "weights");
  EXPECT_NE(answer.infeasible->nearest_fix.find("8 devices of this kind"), std::string::npos) << answer.infeasible->nearest_fix;
}

// A million tokens on one rank are terabytes of activations: more devices would not help, shorter sequences would.
TEST(Search, ActivationsThatDoNotFitAreAnsweredWithAShorterSequence) {
  Problem p = problem("qwen3-30b-a3b", 16);
  p.workload.sequence_length = 1 << 20;
  SearchOptions o;
  o.pins.recompute = Recompute::none;
  o.pins.micro_batch = 1;
  const Answer a = plan(p, o);
  ASSERT_TRUE(a.infeasible);
  EXPECT_EQ(a.infeasible->largest.front().name, "activations");
  EXPECT_NE(a.infeasible->nearest_fix.find("sequences of"), std::string::npos) << a.infeasible->nearest_fix;
}

TEST(Search, PinsThatCannotFoldAreRefused) {
  SearchOptions o;
  o.pins.pp = 3;
  EXPECT_THROW((void)plan(problem("qwen3-30b-a3b", 16), o), InputError);
}

TEST(Search, ABatchThatNoLayoutDividesIsRefusedWithTheNumbers) {
  Problem p = problem("qwen3-30b-a3b", 16);
  p.workload.global_batch = 7;
  SearchOptions o;
  o.pins.pp = 1;
  try {
    (void)plan(p, o);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("7 sequences"), std::string::npos) << e.what();
  }
}

TEST(PlanFile, ReplaysToTheByte) {
  const Problem p = problem("tiny-kimi-k3", 8, Training::lora, "log-normal-v3");
  const RankedPlan best = plan(p, {}).plans.front();
  const Json file = parse_json(plan_file(p, best).dump(), "plan.json", {.max_depth = 64});
  const LoadedPlan again = read_plan_file(file, "plan.json");
  EXPECT_EQ(again.plan, best.plan);
  EXPECT_EQ(plan_file(again.problem, {again.plan, forecast(again.problem, again.plan)}).dump(), plan_file(p, best).dump());
}

}  // namespace
}  // namespace moeplan
