/// How tokens reach experts: types, routes, capacity, replicas; and stages of unequal layers, optimizers of unequal states.

#include <gtest/gtest.h>

#include "core/configs.hpp"
#include "planner/exchange_reach.hpp"
#include "planner/load_factors.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"
#include "planner/rules.hpp"
#include "planner/space.hpp"
#include "sim/cost/collectives.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

Problem problem(const std::string& model, std::int64_t gpus, const std::string& load = "log-normal-v3", Training method = Training::lora) {
  ProblemRequest r;
  r.model = model;
  r.device = "h200";
  r.gpus = gpus;
  r.load = load;
  r.method = method;
  return make_problem(MOEPLAN_SOURCE "/configs", r);
}

Plan a_plan(const Problem& p, Parallelism parallelism, ExpertExchange experts = {}) {
  Plan plan;
  plan.parallelism = parallelism;
  plan.micro_batches = 4;
  plan.stage_layers = even_stages(static_cast<std::int64_t>(p.model.layers.size()), parallelism.pp);
  plan.experts = experts;
  return plan;
}

std::vector<CommCall> exchanges(const std::vector<BlockNode>& nodes, Collective collective) {
  std::vector<CommCall> out;
  for (const BlockNode& n : nodes)
    if (const auto* c = std::get_if<CommCall>(&n.call); c && c->collective == collective) out.push_back(*c);
  return out;
}

// A row of 7168 columns: 14336 bytes as bf16; as fp8 7168 and 56 floats. Sums of experts' rows and of gradients stay bf16.
TEST(Exchange, Fp8HalvesTheWayToTheExpertsOnly) {
  const Problem p = problem("deepseek-v3", 64, "uniform");
  Plan plan = a_plan(p, {.ep = 64, .dp_shard = 64}, {.dispatch = DType::fp8});
  plan.recompute = Recompute::none;
  const Block b = lower_slot(p, plan, outline(p.model, p.workload), 10, 1.0);
  const std::int64_t rows = 4096 * 8;
  EXPECT_EQ(exchanges(b.forward, Collective::dispatch).front().payload.value, rows * (7168 + 4 * 56));
  EXPECT_EQ(exchanges(b.forward, Collective::combine).front().payload.value, rows * 2 * 7168);
  EXPECT_EQ(exchanges(b.backward, Collective::dispatch).front().payload.value, rows * (7168 + 4 * 56));
  EXPECT_EQ(exchanges(b.backward, Collective::combine).front().payload.value, rows * 2 * 7168);
  EXPECT_LT(forecast(p, plan).step, forecast(p, a_plan(p, {.ep = 64, .dp_shard = 64})).step);
}

// De-duplicated: 256 experts, 8 a token, 64 ranks on 8 nodes. To nodes: 5.29 distinct, 4.63 of them remote; to ranks: 7.68 distinct, 7/8 of them on other nodes.
TEST(Exchange, TheDirectRouteSendsMoreOverTheFabric) {
  const Problem p = problem("deepseek-v3", 64, "uniform");
  Runtime once = p.runtime;
  once.deduplicated_dispatch = true;
  const Links links(p.cluster, once);
  CommCall call{.collective = Collective::dispatch, .group = Group::expert, .payload = {8000}, .rows = 8, .tokens = 1, .experts = 256};
  const double hops = links.bytes(call, {64, 1})[1];
  call.direct = true;
  const double direct = links.bytes(call, {64, 1})[1];
  EXPECT_NEAR(hops, 1000 * 4.63, 10);
  EXPECT_NEAR(direct, 1000 * distinct_domains(256, 8, 64) * 56 / 64, 1e-6);
  EXPECT_GT(direct, 1.3 * hops);
}

// DeepSeek-V3 routes to 4 of 8 groups. 8 nodes of 8 ranks: in order a node holds a group, and a token meets 3.63 of them; 3.63 x 7/8 = 3.17 copies travel.
TEST(Exchange, PlacementsThatKeepGroupsOnNodesSendLess) {
  Problem p = problem("deepseek-v3", 64, "uniform");
  Plan plan = a_plan(p, {.ep = 64, .dp_shard = 64});
  const auto time = [&](ExpertPlacement placement) {
    plan.experts.placement = placement;
    return forecast(p, plan).time[static_cast<std::size_t>(TimeCategory::expert_communication)].value;
  };
  EXPECT_EQ(time(ExpertPlacement::balanced), time(ExpertPlacement::hierarchical)) << "one copy for each expert";
  p.runtime.deduplicated_dispatch = true;
  EXPECT_LT(time(ExpertPlacement::hierarchical), 0.9 * time(ExpertPlacement::balanced));
  EXPECT_LT(time(ExpertPlacement::contiguous), 0.9 * time(ExpertPlacement::balanced));
  const ExchangeReach reach = exchange_reach(p, plan).value();
  EXPECT_EQ(reach.domains, 8);
  EXPECT_NEAR(reach.distinct, 3.63, 0.005);
  EXPECT_NEAR(reach.copies, 3.63 * 7 / 8, 0.005);
  EXPECT_NEAR(reach.copies_by_load, 5.295 * 7 / 8, 0.005);
}

TEST(Capacity, BoundsTheBusiestRankAndDropsTheRest) {
  const Problem p = problem("deepseek-v3", 64);
  Plan plan = a_plan(p, {.ep = 32, .dp_shard = 64});
  LoadFactors factors(p);
  const double free = factors.stage(plan, 0, 61).p50.step;
  double before = 1;
  for (const double capacity : {1.0, 1.25, 1.5, 2.0}) {
    plan.experts.capacity_factor = capacity;
    factors.prepare(plan);
    EXPECT_LE(factors.stage(plan, 0, 61).p95.step, std::min(capacity, free * 1.5)) << capacity;
    EXPECT_GT(factors.dropped(plan), 0);
    EXPECT_LT(factors.dropped(plan), before);
    before = factors.dropped(plan);
  }
  plan.experts.overflow = Overflow::reroute;
  factors.prepare(plan);
  EXPECT_EQ(factors.dropped(plan), 0);
  plan.experts.pad = true;
  factors.prepare(plan);
  EXPECT_NEAR(factors.stage(plan, 0, 61).p50.step, 2.0, 1e-12);   // every expert works on its full capacity
}

// The run refuses it (executor/walk/walk.cpp), so no plan asks for it.
TEST(Capacity, IsNotReroutedWhereChoicesAreWeighedInTurn) {
  const Problem p = problem("phi-3.5-moe", 8);
  Plan plan = a_plan(p, {.ep = 8, .dp_shard = 8});
  plan.experts.capacity_factor = 1.25;
  for (const Overflow overflow : {Overflow::drop_position, Overflow::drop_probability, Overflow::reroute}) {
    plan.experts.overflow = overflow;
    const auto no = first_rejection(p, plan);
    const bool refused = no && no->rule == "exchange_runs";
    EXPECT_EQ(refused, overflow == Overflow::reroute);
    if (refused) { EXPECT_NE(no->reason.find("sparse_mixer"), std::string::npos); }
  }
}

// With a capacity shapes are known beforehand: the host waits for no counts.
TEST(Capacity, NeedsNoCountsOnTheHost) {
  const Problem p = problem("deepseek-v3", 64);
  for (const bool capacity : {false, true}) {
    Plan plan = a_plan(p, {.ep = 32, .dp_shard = 64});
    if (capacity) plan.experts.capacity_factor = 1.25;
    const Block b = lower_slot(p, plan, outline(p.model, p.workload), 10, 1.0);
    EXPECT_EQ(std::any_of(b.forward.begin(), b.forward.end(), [](const BlockNode& n) { return std::holds_alternative<HostWait>(n.call); }), !capacity);
  }
}

// The measured DeepSeek-V3 counts at 32 ranks: contiguous 2.29, reordered 1.14, with replicas next to 1 (and the draw's noise).
TEST(Replicas, NeverRaiseTheWorstRank) {
  const Problem p = problem("deepseek-v3", 64, "deepseek-v3-prefill-in1024");
  Plan plan = a_plan(p, {.ep = 32, .dp_shard = 64});
  LoadFactors factors(p);
  double before = factors.stage(plan, 0, 61).p50.step;
  EXPECT_GT(before, 2);
  plan.experts.placement = ExpertPlacement::balanced;
  for (const std::int64_t replicas : {0, 32, 64, 128}) {
    plan.experts.replicas = replicas;
    factors.prepare(plan);
    const double here = factors.stage(plan, 0, 61).p50.step;
    EXPECT_LE(here, before * 1.02) << replicas;   // what a micro-batch realises differs from the population
    before = here;
  }
  EXPECT_LT(before, 1.2);
}

// 256 experts and 32 replicas on 32 ranks: nine slots where there were eight.
TEST(Replicas, TakeTheirSlotsMemory) {
  const Problem p = problem("deepseek-v3", 64);
  const auto experts = [&](std::int64_t replicas) {
    const Plan plan = a_plan(p, {.ep = 32, .dp_shard = 64}, {.replicas = replicas, .placement = ExpertPlacement::balanced});
    EXPECT_FALSE(first_rejection(p, plan));
    const Block b = slot_weights(p, plan, 10);
    std::int64_t elements = 0;
    for (const Weight& w : b.weights) if (w.split == WeightSplit::expert || w.split == WeightSplit::expert_row) elements += w.shape.elements();
    return elements;
  };
  EXPECT_EQ(experts(32) * 8, experts(0) * 9);
}

TEST(Exchange, WhatCannotRunIsRefusedInWords) {
  const Problem p = problem("deepseek-v3", 64, "uniform", Training::full);
  const auto reason = [&](ExpertExchange x) { return first_rejection(p, a_plan(p, {.ep = 32, .dp_shard = 64}, x))->reason; };
  EXPECT_EQ(reason({.replicas = 32, .placement = ExpertPlacement::balanced}), "32 replicas of experts that are trained (full): each copy sees a part of the gradient, and the sum over copies is run but not priced; no replicas, or frozen experts");
  EXPECT_EQ(reason({.pad = true}), "padding to capacity needs a capacity factor");
  EXPECT_EQ(reason({.dispatch = DType::int4}), "tokens travel to experts as bf16 or fp8, not as int4");
}

TEST(Stages, APinnedSplitIsTaken) {
  const Problem p = problem("qwen3-30b-a3b", 16, "uniform");
  SearchOptions o;
  o.pins.stage_layers = {13, 12, 12, 11};
  for (const CandidateGroup& g : candidates(p, o))
    for (const Plan& plan : g.plans) EXPECT_EQ(plan.stage_layers, o.pins.stage_layers);
}

// AdamW holds 8 bytes a parameter, its 8-bit form 2 + 2 x 4 / 256, Muon 4 for matrices; Muon's steps multiply matrices.
TEST(Optimizers, DifferInStateAndTime) {
  Problem p = problem("qwen3-30b-a3b", 16, "uniform", Training::full);
  const Plan plan = a_plan(p, {.ep = 8, .dp_shard = 16, .expert_shard = 2});
  const auto of = [&](OptimizerKind kind) {
    p.workload.optimizer = kind;
    return forecast(p, plan);
  };
  const Forecast adam = of(OptimizerKind::adamw), bytes = of(OptimizerKind::adamw8bit), muon = of(OptimizerKind::muon);
  const auto state = [](const Forecast& f) { return static_cast<double>(f.memory[MemoryCategory::optimizer].value); };
  EXPECT_NEAR(state(bytes) / state(adam), 2.03125 / 8, 1e-3);
  EXPECT_NEAR(state(muon) / state(adam), 0.5, 1e-2);
  const auto seconds = [](const Forecast& f) { return f.time[static_cast<std::size_t>(TimeCategory::optimizer)]; };
  EXPECT_LT(seconds(bytes), seconds(adam));
  EXPECT_GT(seconds(muon), seconds(adam));
}

}  // namespace
}  // namespace moeplan
