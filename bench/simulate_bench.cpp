/// A simulated step of real plans, from lowered programs to timelines: compile, play, timeline, memory timeline.

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "planner/planner.hpp"
#include "planner/problem.hpp"
#include "planner/space.hpp"
#include "sim/engine/costs.hpp"
#include "sim/engine/idle.hpp"
#include "sim/engine/memory_timeline.hpp"

namespace moeplan {
namespace {

struct Case {
  Problem problem;
  Plan plan;
  std::vector<Program> stages;

  Case(const std::string& model, const std::string& device, Parallelism parallelism, std::int64_t micro_batches, Training method) {
    ProblemRequest r;
    r.model = model;
    r.device = device;
    r.gpus = parallelism.world();
    r.method = method;
    r.load = "uniform";
    problem = make_problem(MOEPLAN_SOURCE "/configs", r);
    plan.parallelism = parallelism;
    plan.micro_batches = micro_batches;
    plan.stage_layers = even_stages(static_cast<std::int64_t>(problem.model.layers.size()), parallelism.pp);
    for (int s = 0; s < parallelism.pp; ++s) stages.push_back(lower(problem, plan, s * parallelism.stage_ranks()));
  }
};

/// 9,216 GPUs, DeepSeek-V3: pp 16 x dp 576, ep 64.
const Case& large() {
  static const Case c("deepseek-v3", "h100", {.pp = 16, .ep = 64, .dp_replicate = 1, .dp_shard = 576, .expert_shard = 9}, 64, Training::full);
  return c;
}
const Case& k3() {
  static const Case c("kimi-k3", "h200", {.pp = 2, .ep = 64, .dp_replicate = 1, .dp_shard = 64}, 8, Training::lora);
  return c;
}

/// `every_expert_rank`: one rank per stage and expert coordinate instead of one per stage, each up to half as slow again as the fastest,
/// as ranks under skewed experts are.
void step(benchmark::State& state, const Case& c, bool every_expert_rank, bool outputs) {
  const Prices prices(c.problem.cluster.device, c.problem.profile, c.problem.runtime);
  const Links links(c.problem.cluster, c.problem.runtime);
  const Costs costs = model_costs(prices, links, c.plan.parallelism);
  std::vector<PlayedRank> ranks = folded(c.stages, c.plan.parallelism, costs);
  if (every_expert_rank) {
    ranks.clear();
    for (const Program& p : c.stages)
      for (int e = 0; e < c.plan.parallelism.ep; ++e)
        ranks.push_back({.program = &p, .costs = &costs, .rank = static_cast<std::int64_t>(p.stage) * c.plan.parallelism.stage_ranks() + e, .stands_for = c.plan.parallelism.expert_data(), .slowdown = 1 + 0.5 * (e * 37 % 64) / 64});
  }
  std::uint64_t events = 0;
  for (auto _ : state) {
    const Job job = make_job(ranks, c.plan.parallelism);
    const Played played = play(job, {.cluster = &c.problem.cluster});
    events += played.events;
    if (!outputs) continue;
    benchmark::DoNotOptimize(timeline(job, played));
    benchmark::DoNotOptimize(critical_path(job, played));
    for (std::size_t s = 0; s < c.stages.size(); ++s) benchmark::DoNotOptimize(memory_timeline(c.stages[s], c.problem, c.plan, job, played, static_cast<std::int32_t>(s)));
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(events));
}
BENCHMARK_CAPTURE(step, v3_9216_gpus_folded, large(), false, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(step, v3_9216_gpus_folded_with_timelines, large(), false, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(step, v3_9216_gpus_every_expert_rank, large(), true, false)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(step, k3_128_gpus_with_timelines, k3(), false, true)->Unit(benchmark::kMillisecond);

/// 16 stages x `ep` expert ranks, each played at a speed of its own. Bytes are the process's peak: run one case at a time.
void unfolded_ranks(benchmark::State& state) {
  const auto ep = static_cast<int>(state.range(0));
  const Case c("deepseek-v3", "h100", {.pp = 16, .ep = ep, .dp_replicate = 1, .dp_shard = ep}, 64, Training::full);
  step(state, c, true, false);
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  state.counters["peak_mib"] = static_cast<double>(used.ru_maxrss) / 1024;
}
BENCHMARK(unfolded_ranks)->Arg(4)->Arg(16)->Arg(64)->Arg(256)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace moeplan

BENCHMARK_MAIN();
