/// How fast the engine plays: events per second on one core, and the step of a large job with its timeline.

#include <benchmark/benchmark.h>

#include "sim/engine/events.hpp"
#include "sim/engine/trace.hpp"
#include "tests/sim/hand_made_job.hpp"

namespace moeplan {
namespace {

using namespace testing;

void queue(benchmark::State& state) {
  EventQueue q;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(state.range(0)); ++i) q.push(i * 7919 % 1000, i);
  for (auto _ : state) {
    const auto e = q.pop();
    q.push(e.at + 1 + e.what * 7919 % 1000, e.what);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(queue)->Arg(64)->Arg(1024);

/// 16 stages x 4 expert blocks x 64 micro-batches: blocks of 9 steps with two exchanges each way, a gather and a reduction per block.
Job large(std::int32_t stages, std::int32_t blocks, std::int32_t micro_batches, double bytes) {
  Job job;
  const auto block = [&](const char* name, Picoseconds scale, Activity kind) {
    return pass(job, name, {compute(3 * scale, {}, kind), compute(scale, {0}, kind), communicate(job, 2 * scale, {1}, Track::expert_communication, Group::expert, bytes), compute(scale, {1}, kind),
                            compute(4 * scale, {2, 3}, kind), communicate(job, 2 * scale, {4}, Track::expert_communication, Group::expert, bytes), compute(scale, {4}, kind), compute(2 * scale, {5, 6}, kind)});
  };
  const auto f = block("forward of block", 100'000'000, Activity::forward), b = block("backward of block", 200'000'000, Activity::backward);
  const auto gather = pass(job, "gather", {communicate(job, 500'000'000, {}, Track::data_communication, Group::data_shard, bytes)});
  const auto reduce = pass(job, "reduce", {communicate(job, 500'000'000, {}, Track::data_communication, Group::data_shard, bytes)});
  for (std::int32_t s = 0; s < stages; ++s) {
    JobProgram p;
    const auto add = [&](Task t) { p.tasks.push_back(std::move(t)); return static_cast<std::int32_t>(p.tasks.size() - 1); };
    std::int32_t last = -1;
    const auto passes = [&](std::int32_t which, std::int32_t j, bool down) {
      std::int32_t before = (down ? s > 0 : s + 1 < stages) ? add(receive(down, j)) : -1;
      for (std::int32_t k = 0; k < blocks; ++k) {
        Task g = run(gather, {}, j, Queue::data);
        if (last >= 0) g.after.push_back(last);
        const std::int32_t gathered = add(std::move(g));
        Task t = run(which, {gathered}, j);
        if (before >= 0) t.after.push_back(before);
        last = before = add(std::move(t));
        if (!down) add(run(reduce, {before}, j, Queue::data));
      }
      if (down ? s + 1 < stages : s > 0) add(send(job, 100'000'000, down, {before}, j, bytes / 10));
    };
    const std::int32_t warm = std::min(micro_batches, stages - 1 - s);
    for (std::int32_t j = 0; j < warm; ++j) passes(f, j, true);
    for (std::int32_t j = warm; j < micro_batches; ++j) { passes(f, j, true); passes(b, j - warm, false); }
    for (std::int32_t j = micro_batches - warm; j < micro_batches; ++j) passes(b, j, false);
    job.programs.push_back(std::move(p));
  }
  line_up(job);
  return job;
}

ClusterSpec cluster(std::int64_t nodes) {
  ClusterSpec c;
  c.nodes = nodes;
  c.devices_per_node = 1;
  LinkTier t;
  t.efficiency = t.all_to_all_efficiency = 1;
  t.kind = LinkKind::scale_up;
  t.span = 1;
  t.bandwidth = {400e9};
  c.tiers.push_back(t);
  t.kind = LinkKind::network;
  t.span = 0;
  t.bandwidth = {50e9};
  c.tiers.push_back(t);
  return c;
}

void step(benchmark::State& state, bool contention, bool with_timeline) {
  const Job job = large(16, 4, 64, 8e6);
  const ClusterSpec c = cluster(16);
  std::uint64_t events = 0;
  for (auto _ : state) {
    const Played p = play(job, {.cluster = contention ? &c : nullptr});
    events += p.events;
    if (with_timeline) benchmark::DoNotOptimize(timeline(job, p));
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(events));
}
BENCHMARK_CAPTURE(step, alone, false, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(step, shared_links, true, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(step, shared_links_and_timeline, true, true)->Unit(benchmark::kMillisecond);

void trace(benchmark::State& state) {
  const Job job = large(16, 4, 64, 8e6);
  const StepTimeline t = timeline(job, play(job));
  for (auto _ : state) benchmark::DoNotOptimize(chrome_trace(t));
}
BENCHMARK(trace)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace moeplan

BENCHMARK_MAIN();
