/// Every schedule: closed form = engine, the planner's memory = the walk over the program = the timeline's peak.

#include <gtest/gtest.h>

#include "planner/prices.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"
#include "planner/scheduled.hpp"
#include "planner/evaluate.hpp"
#include "planner/space.hpp"
#include "sim/engine/costs.hpp"
#include "sim/engine/engine.hpp"
#include "sim/engine/memory_timeline.hpp"

namespace moeplan {
namespace {

using Kind = Turn::Kind;

Plan order_of(Schedule schedule, int stages, int virtual_stages, std::int64_t micro_batches) {
  Plan plan;
  plan.parallelism.pp = stages;
  plan.schedule = schedule;
  plan.virtual_stages = virtual_stages;
  plan.micro_batches = micro_batches;
  return plan;
}

/// Step of equal stages whose chunk takes f forward, b and w backward (together where they are not split), messages free.
double equal_stages(Schedule schedule, int stages, int virtual_stages, std::int64_t micro_batches, double f, double b, double w) {
  const Plan plan = order_of(schedule, stages, virtual_stages, micro_batches);
  std::vector<std::vector<Turn>> order;
  for (int s = 0; s < stages; ++s) order.push_back(turns(plan, s));
  const double back = splits_backward(plan) ? b : b + w;
  const std::map<Kind, TurnTime> times{{Kind::forward, {f, f, 0}}, {Kind::backward, {back, 0, back}}, {Kind::weight, {w}}, {Kind::both, {f + back, f + back, f + back}}};
  return turns_seconds(order, virtual_stages, 0, [&](std::size_t s, std::size_t k) -> const TurnTime& { return times.at(order[s][k].kind); });
}

TEST(ScheduleFormula, OneForwardOneBackwardHasTheBubbleOfAllStagesButOne) {
  for (const int p : {2, 4, 8}) EXPECT_DOUBLE_EQ(equal_stages(Schedule::one_forward_one_backward, p, 1, 16, 1, 1, 1), 3.0 * (16 + p - 1));
}

// Narayanan et al. 2021: the bubble (p - 1)(F + B) divided by v; chunks take 1 / v of a stage.
TEST(ScheduleFormula, InterleavingDividesTheBubbleByTheVirtualStages) {
  for (const int p : {2, 4, 8})
    for (const int v : {2, 4}) {
      const double f = 1.0 / v, back = 2.0 / v;
      EXPECT_NEAR(equal_stages(Schedule::interleaved, p, v, 16, f, back / 2, back / 2), 3.0 * 16 + 3.0 * (p - 1) / v, 1e-9) << p << " " << v;
    }
}

// Qi et al. 2024: (p - 1)(F + B - W).
TEST(ScheduleFormula, ZeroBubbleFillsTheBubbleWithWeightGradients) {
  for (const int p : {2, 4, 8}) {
    EXPECT_DOUBLE_EQ(equal_stages(Schedule::zero_bubble, p, 1, 16, 1, 1, 1), 3.0 * 16 + (p - 1) * (1 + 1 - 1));
    EXPECT_DOUBLE_EQ(equal_stages(Schedule::zero_bubble, p, 1, 16, 1.0, 1.25, 0.75), 3.0 * 16 + (p - 1) * (1 + 1.25 - 0.75));
  }
}

// The pairs cost what they cost one after the other here: the warm-up is twice as long as 1F1B's, but nothing waits in between.
TEST(ScheduleFormula, ExpertOverlapKeepsEveryStageBusyInTheSteadyState) {
  EXPECT_DOUBLE_EQ(equal_stages(Schedule::expert_overlap, 1, 1, 16, 1, 1, 1), 48);
  EXPECT_LE(equal_stages(Schedule::expert_overlap, 4, 1, 64, 1, 1, 1), 3 * 64 + 3 * 3 + 6);
}

Problem problem(const std::string& model, std::int64_t gpus, Training method, const std::string& load = "uniform") {
  ProblemRequest r;
  r.model = model;
  r.device = "h200";
  r.gpus = gpus;
  r.method = method;
  r.load = load;
  return make_problem(MOEPLAN_SOURCE "/configs", r);
}

struct Case {
  Schedule schedule;
  int pp, virtual_stages, micro_batches, shard;
  Training method;
  bool reshard = true;
  std::int64_t chunks = 1;
};

class EverySchedule : public testing::TestWithParam<Case> {};

Plan plan_of(const Case& c, const Problem& p) {
  Plan plan = order_of(c.schedule, c.pp, c.virtual_stages, c.micro_batches);
  plan.parallelism = {.pp = c.pp, .ep = 8, .dp_replicate = 16 / c.shard, .dp_shard = c.shard, .expert_shard = c.shard > 1 ? 2 : 1};
  plan.stage_layers = even_stages(static_cast<std::int64_t>(p.model.layers.size()), c.pp * c.virtual_stages);
  plan.recompute = Recompute::selective;
  plan.reshard_after_forward = c.reshard;
  plan.experts.chunks = c.chunks;
  return plan;
}

TEST_P(EverySchedule, ClosedFormEngineAndMemoryAgree) {
  const Case& c = GetParam();
  const Problem p = problem("deepseek-v2-lite", 16 * c.pp, c.method);
  const Plan plan = plan_of(c, p);
  ASSERT_EQ(schedule_fault(plan), "");
  const Prices prices = prices_of(p, plan);
  const Links links(p.cluster, p.runtime, {}, p.profile);
  const Costs costs = model_costs(prices, links, plan.parallelism);
  std::vector<Program> stages;
  for (int s = 0; s < c.pp; ++s) stages.push_back(lower(p, plan, s * plan.parallelism.stage_ranks()));
  EXPECT_EQ(verify_exchange(stages), std::vector<std::string>{});
  const Job job = make_job(folded(stages, plan.parallelism, costs), plan.parallelism);
  const Played played = play(job);
  const Forecast f = forecast(p, plan, false, false);
  EXPECT_NEAR(to_seconds(played.step).value, f.step.value, 0.5e-12 * static_cast<double>(played.events) + 1e-12 * f.step.value);
  Bytes worst{};
  for (int s = 0; s < c.pp; ++s) {
    const MemoryBreakdown walk = memory(stages[static_cast<std::size_t>(s)], p, plan);
    worst = std::max(worst, walk.peak());
    const MemoryTimeline t = memory_timeline(stages[static_cast<std::size_t>(s)], p, plan, job, played, s);
    // A gather that came late leaves less at the peak than the walk, which knows no times.
    if (c.shard == 1) EXPECT_EQ(t.peak.at_peak, walk.at_peak) << s;
    else EXPECT_LE(t.peak.peak(), walk.peak()) << s;
    EXPECT_GT(t.peak.peak().value, 0.9 * static_cast<double>(walk.peak().value)) << s;
  }
  EXPECT_EQ(f.memory.peak(), worst);
  double sum = 0;
  for (const Seconds t : f.time) sum += t.value;
  EXPECT_NEAR(sum, f.step.value, 1e-9 * f.step.value);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, EverySchedule,
    testing::Values(Case{Schedule::interleaved, 2, 2, 4, 1, Training::lora}, Case{Schedule::interleaved, 2, 3, 8, 8, Training::full}, Case{Schedule::interleaved, 4, 2, 8, 8, Training::lora, false},
                    Case{Schedule::zero_bubble, 1, 1, 3, 1, Training::full}, Case{Schedule::zero_bubble, 4, 1, 8, 8, Training::full}, Case{Schedule::zero_bubble, 4, 1, 3, 8, Training::lora, false},
                    Case{Schedule::expert_overlap, 1, 1, 4, 8, Training::full}, Case{Schedule::expert_overlap, 2, 1, 4, 1, Training::lora}, Case{Schedule::expert_overlap, 4, 2, 8, 8, Training::full},
                    Case{Schedule::expert_overlap, 2, 3, 4, 8, Training::lora, false}, Case{Schedule::one_forward_one_backward, 2, 1, 4, 8, Training::full},
                    Case{Schedule::one_forward_one_backward, 2, 1, 4, 1, Training::full, true, 4}, Case{Schedule::zero_bubble, 2, 1, 4, 8, Training::full, true, 2},
                    Case{Schedule::expert_overlap, 2, 2, 4, 1, Training::lora, true, 3}));

// Experts of one piece run under the exchange of the next: less of it is exposed, each piece pays its latency.
TEST(ExchangeChunks, HideExchangesUnderTheExpertsOfOtherPieces) {
  const Problem p = problem("deepseek-v2-lite", 16, Training::full);
  const auto exposed = [&](std::int64_t chunks) {
    const Forecast f = forecast(p, plan_of({Schedule::one_forward_one_backward, 1, 1, 16, 1, Training::full, true, chunks}, p));
    return f.time[static_cast<std::size_t>(TimeCategory::expert_communication)].value;
  };
  EXPECT_LT(exposed(4), exposed(1));
  EXPECT_GT(exposed(64), exposed(4));
}

// Cutting changes no work: the same model flops, every block sound.
TEST(ExchangeChunks, ChangeNoWork) {
  const Problem p = problem("deepseek-v2-lite", 16, Training::full);
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
    for (const std::int64_t chunks : {1, 3}) {
      Plan plan = plan_of({Schedule::one_forward_one_backward, 1, 1, 16, 1, Training::full, true, chunks}, p);
      plan.recompute = recompute;
      EXPECT_NEAR(forecast(p, plan).model_flops.value, forecast(p, plan_of({Schedule::one_forward_one_backward, 1, 1, 16, 1, Training::full}, p)).model_flops.value, 1e9);
      EXPECT_EQ(verify(lower_unverified(p, plan, 0)), std::vector<std::string>{});
    }
}

// Weight gradients exist only where weights are trained: with adapters alone little is put off.
TEST(ZeroBubble, SplitsOffOnlyWhatIsTrained) {
  const Problem lora = problem("deepseek-v2-lite", 64, Training::lora), full = problem("deepseek-v2-lite", 64, Training::full);
  const Case c{Schedule::zero_bubble, 4, 1, 8, 1, Training::lora};
  const auto weight_flops = [&](const Problem& p) {
    double sum = 0;
    for (const Block& b : lower(p, plan_of(c, p), 0).blocks)
      for (const BlockNode& n : b.weight_backward) {
        const auto& call = std::get<OpCall>(n.call);
        sum += flops(call.op, call.pass, call.wants).value;
      }
    return sum;
  };
  EXPECT_GT(weight_flops(lora), 0);
  EXPECT_LT(weight_flops(lora), 0.2 * weight_flops(full));
}

// ZB-H1 against 1F1B on full training, where the bubble is large: faster, and its first stage holds no more micro-batches.
TEST(ZeroBubble, IsFasterThan1F1BWhereTheBubbleIsLarge) {
  const Problem p = problem("deepseek-v2-lite", 64, Training::full);
  const Plan zero = plan_of({Schedule::zero_bubble, 4, 1, 4, 1, Training::full}, p), plain = plan_of({Schedule::one_forward_one_backward, 4, 1, 4, 1, Training::full}, p);
  EXPECT_LT(forecast(p, zero).step.value, forecast(p, plain).step.value);
}

// Side by side, the exchange of one pass is under the compute of the other: less of it is exposed.
TEST(ExpertOverlap, HidesExchangesUnderTheOtherPass) {
  const Problem p = problem("deepseek-v2-lite", 16, Training::full);
  const Forecast plain = forecast(p, plan_of({Schedule::one_forward_one_backward, 1, 1, 16, 1, Training::full}, p));
  const Forecast overlap = forecast(p, plan_of({Schedule::expert_overlap, 1, 1, 16, 1, Training::full}, p));
  const auto exposed = [](const Forecast& f) { return f.time[static_cast<std::size_t>(TimeCategory::expert_communication)].value; };
  EXPECT_LT(exposed(overlap), 0.5 * exposed(plain));
  EXPECT_LT(overlap.step.value, plain.step.value);
  EXPECT_GT(overlap.memory.peak().value, plain.memory.peak().value);   // one more micro-batch in flight
}

TEST(Interleaved, TakesMoreMemoryAndLessTimeThan1F1B) {
  const Problem p = problem("qwen3-30b-a3b", 64, Training::full);
  const Forecast plain = forecast(p, plan_of({Schedule::one_forward_one_backward, 4, 1, 8, 1, Training::full}, p));
  const Forecast cut = forecast(p, plan_of({Schedule::interleaved, 4, 2, 8, 1, Training::full}, p));
  EXPECT_LT(cut.step.value, plain.step.value);
  EXPECT_GT(cut.memory[MemoryCategory::activations].value, plain.memory[MemoryCategory::activations].value);
}

}  // namespace
}  // namespace moeplan
