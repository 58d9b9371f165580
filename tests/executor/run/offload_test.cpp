/// What a plan keeps in host memory goes there and comes back: the same bits as without, in the bytes that the plan says. On the CPU a copy is made
/// at the last moment, when it is awaited: a wait that is missing reads old bytes.

#include <gtest/gtest.h>

#include "executor/ranks/runnable.hpp"
#include "executor/train/measured.hpp"
#include "sim/memory/memory.hpp"
#include "tests/executor/run/many_ranks.hpp"

namespace moeplan {
namespace {

using namespace test;

constexpr std::array kParts{Offload::optimizer, Offload::weights, Offload::activations, Offload::all};

/// Values of 1024 tokens and 512 columns are 1 MiB: they leave.
Problem wide_problem(const char* file, std::size_t layers, bool everything = false) {
  ModelSpec m = shrunk(shipped(file), layers);
  m.hidden = 512;
  return problem(std::move(m), everything ? full(256) : lora(256));
}

Outcome run_with(const Problem& p, Plan q, Offload offload, const std::vector<std::vector<Batch>>& batches) {
  q.offload = offload;
  TrainOptions options;
  options.learning_rate = 1e-2;
  return run_plan(p, q, batches, options, {}, CpuStorage::as_planned);
}

void expect_same_bits(const Outcome& a, const Outcome& b, const std::string& what) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t s = 0; s < a.steps.size(); ++s) {
    EXPECT_EQ(a.steps[s].loss, b.steps[s].loss) << what << ", step " << s;
    EXPECT_EQ(a.steps[s].gradient_norm, b.steps[s].gradient_norm) << what << ", step " << s;
  }
  EXPECT_TRUE(a.gradients == b.gradients) << what;
  EXPECT_TRUE(a.values == b.values) << what;
}

std::vector<std::vector<Batch>> steps_of(const Problem& p, const Plan& q, std::int64_t steps) {
  std::vector<std::vector<Batch>> out;
  for (std::int64_t s = 0; s < steps; ++s) {
    out.emplace_back();
    for (std::int64_t j = 0; j < q.micro_batches * q.parallelism.dp(); ++j) out.back().push_back(batch(p, q, static_cast<std::uint64_t>(10 * s + j)));
  }
  return out;
}

struct Case {
  const char* file;
  Recompute recompute;
  bool full = false;
};

class OffloadRuns : public testing::TestWithParam<Case> {};

TEST_P(OffloadRuns, ToTheSameBits) {
  const auto& [file, recompute, everything] = GetParam();
  const Problem p = wide_problem(file, 2, everything);
  const Plan q = plan(p, 4, 2, recompute);
  const auto batches = steps_of(p, q, 2);
  const Outcome plain = run_with(p, q, Offload::none, batches);
  for (const Offload offload : kParts) expect_same_bits(plain, run_with(p, q, offload, batches), std::string(name_of(offload)));
}

TEST_P(OffloadRuns, InThePlannedBytes) {
  const auto& [file, recompute, everything] = GetParam();
  const Problem p = wide_problem(file, 3, everything);
  std::int64_t longer = 0;   // what lives longer than planned, stored blocks (docs/executor.md), does so without copies too
  for (const Offload offload : {Offload::none, Offload::optimizer, Offload::weights, Offload::activations, Offload::all}) {
    Plan q = plan(p, 4, 2, recompute);
    q.offload = offload;
    const auto backend = cpu_backend(CpuStorage::as_planned);
    const Trainer trainer(p, q, *backend, {});
    const MemoryBreakdown planned = memory(trainer.program(), p, q);
    MemoryBreakdown measured = trainer.memory();
    measured[MemoryCategory::allocator_reserve] = {};   // gaps of the layout
    const std::int64_t beyond = (measured.peak() - planned.peak()).value;
    if (offload == Offload::none) {
      longer = beyond;
      EXPECT_TRUE(beyond == 0 || p.model.layers.front().stores_block) << beyond;
      continue;
    }
    // Fetched weights begin at multiples of 256 bytes, moments pass in windows of as many elements.
    double near = offloads_weights(offload) || offloads_optimizer(offload) ? 1e-3 * static_cast<double>(planned.peak().value) : 0;
    // A stored block is on the device until the last layer has read it: one more at the peak where kept values leave.
    if (p.model.layers.front().stores_block && offloads_activations(offload)) near += 2.0 * 1024 * 512;
    EXPECT_NEAR(static_cast<double>(beyond), static_cast<double>(longer), near)
        << name_of(offload) << ": " << planned.peak_at << " | " << measured.peak_at;
    EXPECT_EQ(measured.host.value, planned.host.value) << name_of(offload);
    EXPECT_TRUE(everything || planned.host.value > 0) << name_of(offload);
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, OffloadRuns,
                         testing::Values(Case{"qwen/qwen3-30b-a3b.json", Recompute::none}, Case{"qwen/qwen3-30b-a3b.json", Recompute::full, true}, Case{"kimi/kimi-k3.json", Recompute::none},
                                         Case{"kimi/kimi-linear-48b-a3b.json", Recompute::selective}, Case{"gpt-oss/gpt-oss-20b.json", Recompute::selective}),
                         [](const auto& each) { return "case_" + std::to_string(each.index); });

struct Spread {
  const char* name;
  Parallelism parallelism;
  Recompute recompute = Recompute::none;
  bool once = false;
};

class OffloadOverRanks : public testing::TestWithParam<Spread> {};

TEST_P(OffloadOverRanks, RunsToTheSameBits) {
  const Spread& each = GetParam();
  Problem p = wide_problem("qwen/qwen3-30b-a3b.json", 2);
  p.workload.sequence_length = 1024;
  p.runtime.deduplicated_dispatch = each.once;
  Plan q = on_ranks(p, each.parallelism, 2, each.recompute);
  const auto batches = data(p, 1, 2 * each.parallelism.dp());
  const Outcome plain = run_with(p, q, Offload::none, batches);
  for (const Offload offload : {Offload::activations, Offload::all}) expect_same_bits(plain, run_with(p, q, offload, batches), std::string(name_of(offload)));
}

INSTANTIATE_TEST_SUITE_P(Ranks, OffloadOverRanks,
                         testing::Values(Spread{"fsdp", {.dp_shard = 2, .expert_shard = 2}}, Spread{"experts", {.ep = 2, .dp_shard = 2}, Recompute::selective},
                                         Spread{"once", {.ep = 2, .dp_shard = 2}, Recompute::none, true}, Spread{"once_repeated", {.ep = 2, .dp_shard = 2}, Recompute::full, true}, Spread{"tensor", {.tp = 2}}, Spread{"stages", {.pp = 2}}),
                         [](const auto& each) { return each.param.name; });

TEST(OffloadRuns, PutOffWeightGradientsReadWhatCameBack) {
  const Problem p = wide_problem("qwen/qwen3-30b-a3b.json", 2, true);
  Plan q = on_ranks(p, {.pp = 2}, 3);
  q.micro_batch = 4, q.schedule = Schedule::zero_bubble;
  const auto batches = steps_of(p, q, 1);
  expect_same_bits(run_with(p, q, Offload::none, batches), run_with(p, q, Offload::all, batches), "zero bubble");
}

TEST(OffloadRuns, EvaluateInBetween) {
  const Problem p = wide_problem("qwen/qwen3-30b-a3b.json", 2);
  Plan q = plan(p, 4), away = q;
  away.offload = Offload::all, away.prefetch = 2;
  TinyRun a(p, q, cpu_backend(CpuStorage::as_planned)), b(p, away, cpu_backend(CpuStorage::as_planned));
  for (std::uint64_t s = 0; s < 3; ++s) {
    const Batch one = batch(p, q, s);
    EXPECT_EQ(a.trainer->evaluate(one), b.trainer->evaluate(one));
    EXPECT_EQ(a.trainer->step({one}).loss, b.trainer->step({one}).loss);
  }
}

TEST(OffloadRuns, ShowTheirCopiesOnALaneOfTheirOwn) {
  const Problem p = wide_problem("qwen/qwen3-30b-a3b.json", 2);
  Plan q = plan(p, 4);
  q.offload = Offload::activations;
  TinyRun run(p, q, cpu_backend(CpuStorage::as_planned));
  StepRecorder recorder(run.trainer->program());
  run.trainer->walk().time([&](const Instance& i, const BlockNode& n, double begin, double end) { recorder.record(i, n, begin, end); });
  (void)run.trainer->evaluate(batch(p, q, 2));   // not timed
  (void)run.trainer->step({batch(p, q, 1)});
  const StepTimeline t = recorder.timeline();
  EXPECT_EQ(t.lanes, (std::vector<std::string>{"compute", "copy"}));
  std::map<std::string, int> copies, planned;
  for (const TimelineEvent& e : t.events)
    if (e.kind == Activity::copy) {
      ++copies[t.names[static_cast<std::size_t>(e.name)]];
      EXPECT_EQ(e.lane, 1);
      EXPECT_GE(e.duration, 0);
    }
  const Program& program = run.trainer->program();
  for (const Instance& i : program.instances) {
    if (i.slot < 0) continue;
    const Block& b = program.blocks[static_cast<std::size_t>(program.slots[static_cast<std::size_t>(i.slot)].block)];
    for (const BlockNode& n : i.phase == Phase::forward ? b.forward : i.phase == Phase::backward ? b.backward : std::vector<BlockNode>{})
      if (const CommCall* comm = std::get_if<CommCall>(&n.call); comm && is_host_copy(comm->collective)) ++planned[std::string(name_of(comm->collective))];
  }
  EXPECT_EQ(copies, planned);
  EXPECT_GT(copies["to_host"], 0);
  // What a call had to wait for is no time of the call.
  EXPECT_NE(std::find(t.names.begin(), t.names.end(), "wait for copies"), t.names.end());
}

TEST(OffloadRuns, RefuseWhatIsPricedOnly) {
  const Problem p = wide_problem("qwen/qwen3-30b-a3b.json", 2);
  const auto backend = cpu_backend(CpuStorage::wide);
  const auto refusal = [&](const Problem& of, const Plan& q, int ranks) -> std::string {
    try {
      refuse_what_cannot_run(of, q, *backend, {}, ranks);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  Plan q = plan(p);
  q.offload = Offload::activations;
  EXPECT_EQ(refusal(p, q, 1), "");
  q = on_ranks(p, {.ep = 2, .dp_shard = 2}, 1);
  q.offload = Offload::activations, q.experts.chunks = 2;
  EXPECT_NE(refusal(p, q, 2).find("exchange in pieces"), std::string::npos);
  Problem copied = p;
  copied.runtime.compute_copy = true;
  q.offload = Offload::optimizer;
  EXPECT_NE(refusal(copied, q, 2).find("master weights beside the weights"), std::string::npos);
}

TEST(OffloadRuns, MoveExpertsThatLieInHostMemory) {
  for (const bool everything : {false, true}) {
    Problem p = problem(shrunk(shipped("qwen/qwen3-30b-a3b.json"), 3), everything ? full(6) : lora(6));
    p.cluster.devices_per_node = 8;
    Plan q = on_ranks(p, {.ep = 4, .dp_shard = 8, .expert_shard = 2}, 1);
    place_by_load(p, q, 4);
    TrainOptions options;
    options.learning_rate = 1e-2;
    options.walk.routed_bound = 8, options.walk.rebalance_every = 1;
    const auto batches = data(p, 3, q.parallelism.dp());
    const Outcome plain = run_plan(p, q, batches, options, {}, CpuStorage::as_planned);
    EXPECT_GT(plain.steps.front().moved_bytes, 0);
    for (const Offload offload : {Offload::optimizer, Offload::weights, Offload::all}) {
      q.offload = offload;
      const Outcome away = run_plan(p, q, batches, options, {}, CpuStorage::as_planned);
      expect_same_bits(plain, away, std::string(name_of(offload)));
      EXPECT_EQ(away.steps.front().moved_bytes, plain.steps.front().moved_bytes);
    }
  }
}

}  // namespace
}  // namespace moeplan
