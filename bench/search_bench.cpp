/// How fast candidates are decided: one full evaluation (time and memory) with layer kinds priced, groups from nothing, whole searches.

#include <benchmark/benchmark.h>

#include <deque>

#include "planner/problem.hpp"
#include "planner/scorer.hpp"
#include "planner/space.hpp"

namespace moeplan {
namespace {

Problem problem(const std::string& model, std::int64_t gpus) {
  ProblemRequest r;
  r.model = model;
  r.device = "h200";
  r.gpus = gpus;
  return make_problem(MOEPLAN_SOURCE "/configs", r);
}

/// Every choice of a group that fills its pipeline.
std::vector<Choice> choices(const Grid& g, const ShardTable& table, const GroupScorer& scorer) {
  std::vector<Choice> out;
  for (std::size_t s = 0; s < table.stages.size(); ++s) {
    if (table.stages[s].split.stages.empty() || scorer.micro_batches(s) < table.stages[s].pp) continue;
    for (std::size_t d = 0; d < table.stages[s].dense.size(); ++d)
      for (std::size_t e = 0; e < table.stages[s].expert.size(); ++e)
        for (const bool reshard : g.reshards)
          for (const std::int64_t prefetch : g.prefetches)
            if (g.distinct(table.stages[s].dense[d].gathers || table.stages[s].expert[e].gathers, reshard, prefetch)) out.push_back({.stages = s, .dense = d, .expert = e, .reshard = reshard, .prefetch = prefetch});
  }
  return out;
}

/// Memory and step time (four lanes) of candidate after candidate, micro-batch 1, layer kinds priced: all groups of one storage.
void warm(benchmark::State& state, const char* model, std::int64_t gpus) {
  const Problem p = problem(model, gpus);
  SearchOptions o;
  o.pins.micro_batch = 1;
  o.pins.frozen_storage = DType::bf16;
  Evaluator shared(p, false);
  const Grid g = grid(p, o);
  for (const Grid::Block& b : g.blocks) shared.prepare(b.plan);
  std::vector<ShardTable> tables;
  std::vector<std::unique_ptr<Evaluator::Group>> groups;
  std::deque<GroupScorer> scorers;   // they stay where they are
  std::vector<std::vector<Choice>> lists;
  tables.reserve(g.blocks.size());
  std::int64_t candidates = 0;
  for (const Grid::Block& b : g.blocks) {
    tables.push_back(shard_table(shared.shared(), b.plan, g.layouts[b.layouts]));
    groups.push_back(std::make_unique<Evaluator::Group>(shared, b.plan));
    scorers.emplace_back(shared, *groups.back(), b.plan, tables.back());
    lists.push_back(choices(g, tables.back(), scorers.back()));
    for (const Choice& c : lists.back()) {   // what a layer kind holds and takes is priced, and so are the stages' transients
      benchmark::DoNotOptimize(scorers.back().memory(c));
      benchmark::DoNotOptimize(scorers.back().step(c));
    }
  }
  for (auto _ : state) {
    for (std::size_t i = 0; i < lists.size(); ++i) {
      for (const Choice& c : lists[i]) {
        benchmark::DoNotOptimize(scorers[i].memory(c));
        benchmark::DoNotOptimize(scorers[i].step(c));
      }
      candidates += static_cast<std::int64_t>(lists[i].size());
    }
  }
  state.SetItemsProcessed(candidates);
}
BENCHMARK_CAPTURE(warm, deepseek_v3_256, "deepseek-v3", 256)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(warm, kimi_k3_128, "kimi-k3", 128)->Unit(benchmark::kMillisecond);

/// The same from nothing: lowering, pricing, tables and every candidate, nothing cut off.
void cold(benchmark::State& state, const char* model, std::int64_t gpus) {
  const Problem p = problem(model, gpus);
  std::int64_t candidates = 0;
  for (auto _ : state) {
    Evaluator shared(p, false);
    const Grid g = grid(p, {});
    for (const Grid::Block& b : g.blocks) shared.prepare(b.plan);
    std::vector<ShardTable> tables;
    std::map<std::pair<std::size_t, DType>, std::size_t> known;
    for (const Grid::Block& b : g.blocks) {
      const auto [it, fresh] = known.try_emplace({b.layouts, b.plan.frozen_storage}, tables.size());
      if (fresh) tables.push_back(shard_table(shared.shared(), b.plan, g.layouts[b.layouts]));
      const ShardTable& table = tables[it->second];
      Evaluator::Group group(shared, b.plan);
      GroupScorer scorer(shared, group, b.plan, table);
      for (const Choice& c : choices(g, table, scorer)) {
        benchmark::DoNotOptimize(scorer.memory(c));
        benchmark::DoNotOptimize(scorer.step(c));
        ++candidates;
      }
    }
  }
  state.SetItemsProcessed(candidates);
}
BENCHMARK_CAPTURE(cold, deepseek_v3_256, "deepseek-v3", 256)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(cold, kimi_k3_128, "kimi-k3", 128)->Unit(benchmark::kMillisecond)->Iterations(1);

void search(benchmark::State& state, const char* model, std::int64_t gpus, int threads) {
  const Problem p = problem(model, gpus);
  SearchOptions o;
  o.threads = threads;
  std::int64_t decided = 0;
  for (auto _ : state) decided += plan(p, o).searched;
  state.SetItemsProcessed(decided);
}
/// Everything that changes no result besides: schedules, virtual and uneven stages, the ways of the expert exchange.
void wide(benchmark::State& state, const char* model, std::int64_t gpus, int threads) {
  const Problem p = problem(model, gpus);
  SearchOptions o;
  o.threads = threads;
  o.wide = true;
  std::int64_t decided = 0;
  for (auto _ : state) decided += plan(p, o).searched;
  state.SetItemsProcessed(decided);
}
BENCHMARK_CAPTURE(wide, deepseek_v3_256_all_cores, "deepseek-v3", 256, 0)->Unit(benchmark::kMillisecond)->Iterations(1)->UseRealTime()->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(search, kimi_k3_128_one_thread, "kimi-k3", 128, 1)->Unit(benchmark::kMillisecond)->Iterations(1)->UseRealTime();
BENCHMARK_CAPTURE(search, kimi_k3_128_all_cores, "kimi-k3", 128, 0)->Unit(benchmark::kMillisecond)->Iterations(1)->UseRealTime();
BENCHMARK_CAPTURE(search, deepseek_v3_256_all_cores, "deepseek-v3", 256, 0)->Unit(benchmark::kMillisecond)->Iterations(1)->UseRealTime();

}  // namespace
}  // namespace moeplan

BENCHMARK_MAIN();
