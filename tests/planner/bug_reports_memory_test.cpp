// Public bug reports on memory estimates, each held to the right answer.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/configs.hpp"
#include "core/error.hpp"
#include "planner/load_factors.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"
#include "sim/memory/memory.hpp"
#include "sim/program/architectures/architecture.hpp"

namespace moeplan {
namespace {

struct Moe {
  std::int64_t hidden = 2048, layers = 4, heads = 16, kv = 4, experts = 128, top_k = 8, width = 768;
};

Problem moe_problem(const Moe& m, std::int64_t gpus) {
  ProblemRequest r;
  r.model = "qwen3-30b-a3b";
  r.device = "h200";
  r.gpus = gpus;
  r.load = "uniform";
  Problem p = make_problem(MOEPLAN_SOURCE "/configs", r);
  Json c = p.model_config;
  c["hidden_size"] = m.hidden;
  c["num_hidden_layers"] = m.layers;
  c["num_attention_heads"] = m.heads;
  c["num_key_value_heads"] = m.kv;
  c["num_experts"] = m.experts;
  c["num_experts_per_tok"] = m.top_k;
  c["moe_intermediate_size"] = m.width;
  p.model = import_model(c, "test", "test");
  return p;
}

Plan plan_for(const Problem& p, Parallelism par, Recompute recompute = Recompute::none) {
  Plan plan;
  plan.parallelism = par;
  plan.stage_layers = {static_cast<std::int64_t>(p.model.layers.size())};
  plan.recompute = recompute;
  return plan;
}

Program program_of(const Problem& p, const Plan& plan) { return lower(p, plan, 0); }
const Block& layer_block(const Program& program) { return program.blocks[static_cast<std::size_t>(program.slots[2].block)]; }

// BL-021: all experts are resident, not only the activated ones.
TEST(BugReports, BL021WeightsAreThoseOfAllExperts) {
  const Problem p = moe_problem({}, 1);
  const Program program = program_of(p, plan_for(p, {.pp = 1, .ep = 1, .dp_shard = 1}));
  EXPECT_GE(program.slots[2].state.weights.value, std::int64_t{2} * 128 * 3 * 2048 * 768);
}

// BL-022: packed weights count one byte and their scales; embeddings, norms and head stay two bytes.
TEST(BugReports, BL022Fp8CountsPerTensorTypeAndScales) {
  const Problem p = moe_problem({}, 1);
  Plan plan = plan_for(p, {.pp = 1, .ep = 1, .dp_shard = 1});
  const Program wide = program_of(p, plan);
  plan.frozen_storage = DType::fp8;
  const Program packed = program_of(p, plan);
  EXPECT_EQ(packed.slots.front().state.weights, wide.slots.front().state.weights);   // embedding
  EXPECT_EQ(packed.slots.back().state.weights, wide.slots.back().state.weights);     // norm and head
  const std::int64_t experts = std::int64_t{128} * 3 * 2048 * 768;
  const std::int64_t attention = 2048 * (16 + 2 * 4) * 128 + 16 * 128 * 2048;
  EXPECT_EQ(wide.slots[2].state.weights.value - packed.slots[2].state.weights.value, (experts + attention) - (experts + attention) / (128 * 128) * 4);
}

// BL-023: 30.5 B frozen base, LoRA r16 on q, k, v, o: 13,369,344 trained parameters over 8 ranks; the base has no gradient and no moments.
TEST(BugReports, BL023FrozenWeightsHaveNoGradientOrOptimizer) {
  ProblemRequest r;
  r.model = "qwen3-30b-a3b";
  r.device = "h200";
  r.gpus = 8;
  r.rank = 16;
  r.targets = {"attention"};
  const Problem p = make_problem(MOEPLAN_SOURCE "/configs", r);
  const Program program = program_of(p, plan_for(p, {.pp = 1, .ep = 1, .dp_shard = 8, .expert_shard = 8}));
  StateBytes sum;
  for (const Slot& s : program.slots) sum += s.state;
  EXPECT_EQ(sum.trained_elements, 13369344 / 8);
  EXPECT_EQ(sum.optimizer.value, 8 * 13369344 / 8);
  EXPECT_EQ(sum.gradients.value, 4 * 13369344 / 8);
}

// BL-026: routed experts divide by expert x expert-tensor ranks, never by tensor ranks; the router is whole everywhere.
TEST(BugReports, BL026RoutedExpertsDivideByExpertRanksOnly) {
  const Problem p = moe_problem({.heads = 16, .kv = 8}, 8);
  const auto elements = [&](Parallelism par, WeightClass cls) {
    const Program program = program_of(p, plan_for(p, par));
    std::int64_t n = 0;
    for (const Weight& w : layer_block(program).weights)
      if (w.cls == cls && !w.adapter) n += w.shape.elements();
    return n;
  };
  const std::int64_t all = std::int64_t{128} * 3 * 2048 * 768;
  EXPECT_EQ(elements({.pp = 1, .tp = 8, .ep = 4, .dp_replicate = 1, .dp_shard = 1}, WeightClass::experts), all / 4);
  EXPECT_EQ(elements({.pp = 1, .tp = 2, .ep = 8, .dp_replicate = 1, .dp_shard = 4}, WeightClass::experts), all / 8);
  EXPECT_EQ(elements({.pp = 1, .tp = 8, .ep = 4, .dp_replicate = 1, .dp_shard = 1}, WeightClass::router), 128 * 2048);
}

// BL-027: with balanced routing a rank keeps as many routed rows at every expert degree.
TEST(BugReports, BL027ExpertParallelismDoesNotRemoveRoutedActivations) {
  const Problem p = moe_problem({}, 8);
  std::vector<std::int64_t> kept;
  for (const int ep : {2, 4, 8}) kept.push_back(block_memory(layer_block(program_of(p, plan_for(p, {.pp = 1, .ep = ep, .dp_shard = 8})))).kept_bytes().value);
  EXPECT_EQ(kept[0], kept[1]);
  EXPECT_EQ(kept[1], kept[2]);
  EXPECT_GE(kept[0], std::int64_t{2} * 8 * 4096 * 2 * 768);   // gate and up of every routed row
}

// BL-028: 384 experts on 8 ranks are 48 each.
TEST(BugReports, BL028ExpertsPerRank) {
  const Problem p = moe_problem({.experts = 384}, 8);
  const Program program = program_of(p, plan_for(p, {.pp = 1, .ep = 8, .dp_shard = 8}));
  for (const Weight& w : layer_block(program).weights)
    if (w.cls == WeightClass::experts && !w.adapter) {
      EXPECT_EQ(w.shape[0], 48);
    }
}

// BL-030: two experts, two ranks, top-2: every rank receives 2 x 4096 x 2 / 2 = 8192 rows.
TEST(BugReports, BL030DispatchRowsAreTokensTimesTopK) {
  const Problem p = moe_problem({.hidden = 1024, .experts = 2, .top_k = 2}, 2);
  const Program program = program_of(p, plan_for(p, {.pp = 1, .ep = 2, .dp_shard = 2}));
  std::int64_t rows = 0;
  for (const Value& v : layer_block(program).values)
    if (v.name.ends_with("dispatched")) rows = v.shape[0];
  EXPECT_EQ(rows, 8192);
}

// BL-032: memory and time grow with top-k at equal parameters.
TEST(BugReports, BL032MoreActiveExpertsNeedMore) {
  const auto of = [](std::int64_t k) {
    const Problem p = moe_problem({.hidden = 1536, .heads = 12, .experts = 48, .top_k = k, .width = 128}, 8);
    return forecast(p, plan_for(p, {.pp = 1, .ep = 8, .dp_shard = 8}));
  };
  EXPECT_LT(of(8).memory.peak(), of(24).memory.peak());
  EXPECT_LT(of(8).step, of(24).step);
}

// BL-024: the headline is the peak; states, activations, gathered copies and context stand apart and sum to it.
TEST(BugReports, BL024ThePeakIsMoreThanTheStates) {
  const Problem p = moe_problem({}, 8);
  const MemoryBreakdown m = forecast(p, plan_for(p, {.pp = 1, .ep = 1, .dp_shard = 8, .expert_shard = 8})).memory;
  const Bytes states = m[MemoryCategory::weights] + m[MemoryCategory::adapters] + m[MemoryCategory::gradients] + m[MemoryCategory::optimizer];
  for (const MemoryCategory c : {MemoryCategory::activations, MemoryCategory::gathered_weights, MemoryCategory::runtime_context}) EXPECT_GT(m[c].value, 0);
  EXPECT_GT(m.peak().value, 2 * states.value);
}

// BL-031: one of 16 experts takes half of all copies: its rank of four holds at least half, twice the balanced share, and memory shows it.
TEST(BugReports, BL031AHotExpertShowsInItsRanksMemory) {
  Problem p = moe_problem({.experts = 16, .top_k = 2}, 4);
  const Plan plan = plan_for(p, {.pp = 1, .ep = 4, .dp_shard = 4});
  const Bytes even = forecast(p, plan).memory_p95.peak();
  std::vector<double> counts(16, 100);
  counts[3] = 1500;
  p.load.distribution = TraceLoad{{counts, counts, counts, counts}};
  Plan on_four;
  on_four.parallelism.ep = 4;
  EXPECT_GE(LoadFactors(p).stage(on_four, 0, 4).p50.buffer, 2);
  EXPECT_GT(forecast(p, plan).memory_p95.peak(), even);
}

// BL-033: a trace larger than the cap is refused by its size, before anything is read.
TEST(BugReports, BL033AHugeTraceIsRefusedBySize) {
  const auto path = std::filesystem::temp_directory_path() / "moeplan-huge-trace.json";
  std::ofstream(path).put('{');
  std::filesystem::resize_file(path, std::uintmax_t{37} << 30);   // sparse
  EXPECT_THROW((void)load_json(path), InputError);
  std::filesystem::remove(path);
}

// BL-044: several nodes and no link between them is a fault of the cluster file, said before anything is planned.
TEST(BugReports, BL044NodesWithoutALinkBetweenThemAreRefused) {
  ClusterSpec c = moe_problem({}, 16).cluster;
  ASSERT_GT(c.nodes, 1);
  while (!c.tiers.empty() && c.tiers.back().span > c.devices_per_node) c.tiers.pop_back();
  EXPECT_THROW(check(c, "cluster.json"), InputError);
}

// BL-065: an expert cut over more ranks than it divides by is padded up, and the padding counted.
TEST(BugReports, BL065ShardsOfExpertsArePaddedUp) {
  const Problem p = moe_problem({.experts = 4, .top_k = 2, .width = 255}, 24);
  const Program whole = program_of(p, plan_for(p, {.pp = 1, .ep = 4, .dp_shard = 24}));
  const Program cut = program_of(p, plan_for(p, {.pp = 1, .ep = 4, .dp_shard = 24, .expert_shard = 3}));
  const std::int64_t expert = std::int64_t{2} * 3 * 2048 * 255, saved = whole.slots[2].state.weights.value - cut.slots[2].state.weights.value;
  EXPECT_LE(saved, expert - expert / 3);
  EXPECT_GE(saved, expert - expert / 3 - 8);
}

}  // namespace
}  // namespace moeplan
