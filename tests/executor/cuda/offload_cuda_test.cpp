/// \file
/// Copies between a device and page-locked host memory beside the calls: the same bits as without, calls by themselves
/// and recorded, and the device's memory falls by what the plan says. Skipped where there is no device.

#include <gtest/gtest.h>

#include "executor/cuda/backend.hpp"
#include "executor/train/measured.hpp"
#include "sim/memory/memory.hpp"
#include "tests/executor/cuda/sized.hpp"

namespace moeplan {
namespace {

using namespace test;

class CudaOffload : public testing::TestWithParam<Offload> {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

struct Seen {
  std::vector<double> losses, norms;
  std::vector<float> values;
  MemoryBreakdown memory, planned;
  bool operator==(const Seen& o) const { return losses == o.losses && norms == o.norms && values == o.values; }
};

/// Four steps: the second and third are recorded and performed, the last is timed.
Seen train(const Problem& p, Plan q, Offload offload) {
  q.offload = offload;
  TrainOptions options;
  options.learning_rate = 2e-3;
  TinyRun run(p, q, cuda_backend(0), options);
  Seen out;
  StepRecorder recorder(run.trainer->program());
  for (std::uint64_t s = 0; s < 4; ++s) {
    if (s == 3) run.trainer->walk().time([&](const Instance& i, const BlockNode& n, double begin, double end) { recorder.record(i, n, begin, end); });
    std::vector<Batch> batches;
    for (std::int64_t j = 0; j < q.micro_batches; ++j) batches.push_back(batch(p, q, 10 * s + static_cast<std::uint64_t>(j)));
    const StepReport report = run.trainer->step(batches);
    out.losses.push_back(report.loss), out.norms.push_back(report.gradient_norm);
  }
  for (const Parameter& each : run.trainer->parameters().all()) {
    if (!each.trained) continue;
    const auto v = values_of(each, *run.backend);
    out.values.insert(out.values.end(), v.begin(), v.end());
  }
  out.memory = run.trainer->memory();
  Problem priced = p;
  priced.runtime.own_kernels = true;
  priced.runtime.workspace = run.backend->beside();
  out.planned = memory(run.trainer->program(), priced, q);
  const bool weights = offloads_weights(offload);
  (weights ? out.planned.host : out.planned[MemoryCategory::weights]) += held_beyond_plan(run.trainer->program(), p, q.parallelism, *run.backend);
  if (weights) out.planned[MemoryCategory::gathered_weights] += fetched_beyond_plan(run.trainer->program(), p, q, *run.backend);
  const StepTimeline t = recorder.timeline();
  for (const TimelineEvent& e : t.events) EXPECT_GE(e.duration, 0);
  EXPECT_EQ(t.lanes.size(), offloads_weights(offload) || offloads_activations(offload) ? 2u : 1u);
  return out;
}

TEST_P(CudaOffload, RunsToTheSameBitsInThePlannedBytes) {
  for (const auto& [file, recompute, everything] :
       {std::tuple{"qwen/qwen3-30b-a3b.json", Recompute::none, false}, std::tuple{"kimi/kimi-linear-48b-a3b.json", Recompute::selective, true},
        std::tuple{"gpt-oss/gpt-oss-20b.json", Recompute::selective, false}}) {
    Problem p = problem(device_sized(file, true), everything ? full(1024) : lora(1024, 8));
    Plan q = plan(p, 4, 2, recompute);
    q.frozen_storage = p.model.stored.experts;
    (void)train(p, q, Offload::none);  // loads what the device keeps of kernels
    const Seen plain = train(p, q, Offload::none), away = train(p, q, GetParam());
    EXPECT_EQ(plain.losses, away.losses) << file;
    EXPECT_TRUE(plain == away) << file;
    EXPECT_EQ(away.memory.host, away.planned.host) << file;
    EXPECT_GT(away.memory.host.value, 0) << file;
    // Pages of 2 MiB, and what an arena's gaps differ by.
    const auto fell = [](const MemoryBreakdown& a, const MemoryBreakdown& b) { return static_cast<double>((a.peak() - b.peak()).value); };
    EXPECT_NEAR(fell(plain.memory, away.memory), fell(plain.planned, away.planned), 8.0 * (1 << 20) + 0.02 * static_cast<double>(plain.planned.peak().value)) << file;
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, CudaOffload, testing::Values(Offload::optimizer, Offload::weights, Offload::activations, Offload::all),
                         [](const auto& each) { return "part_" + std::to_string(static_cast<int>(each.param)); });

}  // namespace
}  // namespace moeplan
