/// Host memory: what moves, what it costs, and that closed form, walk and engine agree.

#include <gtest/gtest.h>

#include <set>

#include "planner/prices.hpp"
#include "planner/evaluate.hpp"
#include "planner/problem.hpp"
#include "planner/rules.hpp"
#include "planner/space.hpp"
#include "sim/engine/costs.hpp"
#include "sim/engine/engine.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan {
namespace {

Problem problem(Training method, const char* model = "qwen3-8b") {
  ProblemRequest r;
  r.model = model;
  r.device = "h200";
  r.gpus = 8;
  r.method = method;
  r.load = "uniform";
  r.sequence_length = 4096;
  return make_problem(MOEPLAN_SOURCE "/configs", r);
}

Plan a_plan(const Problem& p, Offload offload, Recompute recompute = Recompute::full, int pp = 1) {
  Plan plan;
  plan.parallelism = {.pp = pp, .dp_shard = 8 / pp};
  plan.micro_batches = 4;
  plan.stage_layers = even_stages(static_cast<std::int64_t>(p.model.layers.size()), pp);
  plan.recompute = recompute;
  plan.offload = offload;
  return plan;
}

MemoryBreakdown walked(const Problem& p, const Plan& plan) {
  MemoryBreakdown worst;
  Bytes host{};
  for (int stage = 0; stage < plan.parallelism.pp; ++stage) {
    const MemoryBreakdown m = memory(lower(p, plan, stage * plan.parallelism.stage_ranks()), p, plan);
    host = std::max(host, m.host);
    if (stage == 0 || m.peak() > worst.peak()) worst = m;
  }
  worst.host = host;   // of the rank that puts most there
  return worst;
}

TEST(Offload, ClosedFormWalkAndEngineAgree) {
  for (const Training method : {Training::lora, Training::full})
    for (const auto& [offload, name] : EnumNames<Offload>::names)
      for (const int pp : {1, 2}) {
        const Problem p = problem(method);
        const Plan plan = a_plan(p, offload, pp == 1 ? Recompute::none : Recompute::full, pp);
        const Forecast f = forecast(p, plan, false, false);
        const MemoryBreakdown walk = walked(p, plan);
        EXPECT_EQ(f.memory.at_peak, walk.at_peak) << name;
        EXPECT_EQ(f.memory.host, walk.host) << name;
        const Prices prices = prices_of(p, plan);
        const Links links(p.cluster, p.runtime, {}, p.profile);
        const Costs costs = model_costs(prices, links, plan.parallelism);
        std::vector<Program> stages;
        for (int s = 0; s < pp; ++s) stages.push_back(lower(p, plan, s * plan.parallelism.stage_ranks()));
        const Job job = make_job(folded(stages, plan.parallelism, costs), plan.parallelism);
        const Played played = play(job, {});
        EXPECT_NEAR(to_seconds(played.step).value, f.step.value, 1e-12 * static_cast<double>(played.events) + 1e-12 * f.step.value) << name;
      }
}

// Two float moments of each parameter: 8 bytes, an eighth of them on each of eight ranks. A window of two pieces stays.
TEST(Offload, OptimizerStatesLeaveTwoPiecesBehind) {
  const Problem p = problem(Training::full);
  const Forecast here = forecast(p, a_plan(p, Offload::none)), away = forecast(p, a_plan(p, Offload::optimizer));
  EXPECT_EQ(away.memory.host, here.memory[MemoryCategory::optimizer]);
  EXPECT_EQ(away.memory[MemoryCategory::optimizer].value, 512 << 20);
  const double seconds = static_cast<double>(away.memory.host.value) / (p.cluster.device.host_link.value * kHostLinkShare);
  EXPECT_NEAR(away.time[static_cast<std::size_t>(TimeCategory::optimizer)].value, seconds, 1e-4);   // slower than the step over them
  EXPECT_EQ(here.memory.host.value, 0);
}

TEST(Offload, FrozenWeightsComeAsTheyAreUsed) {
  const Problem p = problem(Training::lora);
  const Forecast here = forecast(p, a_plan(p, Offload::none)), away = forecast(p, a_plan(p, Offload::weights));
  EXPECT_EQ(away.memory.host, here.memory[MemoryCategory::weights]);
  EXPECT_EQ(away.memory[MemoryCategory::weights].value, 0);
  EXPECT_GT(away.step, here.step);
}

// Full recompute keeps a layer's input: 4096 tokens x 4096 columns x 2 bytes = 32 MiB for each of 36 layers, and the head's.
TEST(Offload, KeptActivationsGoToTheHost) {
  const Problem p = problem(Training::lora);
  const Forecast here = forecast(p, a_plan(p, Offload::none)), away = forecast(p, a_plan(p, Offload::activations));
  EXPECT_GE(away.memory.host.value, 36 * (32LL << 20));
  EXPECT_LE(away.memory.host.value, 38 * (32LL << 20));
  EXPECT_LT(away.memory[MemoryCategory::activations].value, here.memory[MemoryCategory::activations].value - 20 * (32LL << 20));   // the peak moves into a running block
  EXPECT_LT(away.memory.peak(), here.memory.peak());
}

TEST(Offload, ASlowerHostLinkNeverSpeedsUp) {
  for (const auto& [offload, name] : EnumNames<Offload>::names) {
    Problem p = problem(Training::full);
    const Seconds fast = forecast(p, a_plan(p, offload, Recompute::none)).step;
    p.cluster.device.host_link = p.cluster.device.host_link * 0.5;
    EXPECT_GE(forecast(p, a_plan(p, offload, Recompute::none)).step, fast) << name;
  }
}

TEST(Offload, AHostOfUnknownSizeTakesNothing) {
  Problem p = problem(Training::full);
  p.cluster.host_memory = {};
  const auto no = first_rejection(p, a_plan(p, Offload::optimizer));
  ASSERT_TRUE(no);
  EXPECT_EQ(no->rule, "host_takes");
  EXPECT_FALSE(first_rejection(p, a_plan(p, Offload::none)));
}

TEST(Offload, ANodeHoldsWhatItsRanksPutThere) {
  Problem p = problem(Training::full);
  p.cluster.host_memory = {std::int64_t{100} << 30};
  EXPECT_FALSE(host_overflow(p.cluster, {std::int64_t{10} << 30}));   // 8 x 10 of 80 GiB
  EXPECT_TRUE(host_overflow(p.cluster, {std::int64_t{11} << 30}));
}

TEST(Offload, IsSearchedWhereAskedFor) {
  const Problem p = problem(Training::full);
  SearchOptions o;
  const auto seen = [&] {
    std::set<Offload> out;
    for (const CandidateGroup& g : candidates(p, o))
      for (const Plan& plan : g.plans) out.insert(plan.offload);
    return out;
  };
  EXPECT_EQ(seen(), std::set<Offload>{Offload::none});
  o.search_offload = true;
  EXPECT_GE(seen().size(), 4u);
}

}  // namespace
}  // namespace moeplan
