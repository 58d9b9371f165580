#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/error.hpp"
#include "sim/program/architectures/architecture.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

Problem problem_of(const std::filesystem::path& file) {
  Problem p;
  p.model = import_model_file(file);
  p.workload.experts = {Training::lora, 8, 16};
  return p;
}

void train_everything(Workload& w) {
  for (Tuning* t : {&w.attention, &w.dense, &w.shared, &w.experts, &w.router, &w.embedding, &w.head, &w.norm, &w.other}) *t = {Training::full};
}

Plan plan_of(const Problem& p, Parallelism parallelism, Recompute recompute, std::int64_t micro_batches) {
  Plan plan;
  plan.parallelism = parallelism;
  plan.recompute = recompute;
  plan.micro_batches = micro_batches;
  plan.stage_layers.assign(static_cast<std::size_t>(parallelism.pp), static_cast<std::int64_t>(p.model.layers.size()) / parallelism.pp);
  plan.stage_layers.back() += static_cast<std::int64_t>(p.model.layers.size()) % parallelism.pp;
  return plan;
}

std::vector<std::filesystem::path> shipped() {
  std::vector<std::filesystem::path> out;
  for (const auto& e : std::filesystem::recursive_directory_iterator(MOEPLAN_SOURCE "/configs/models"))
    if (e.path().extension() == ".json" && e.path().filename() != "INDEX.json") out.push_back(e.path());
  std::sort(out.begin(), out.end());
  return out;
}

// Every shipped model, adapters or all weights trained, every recompute mode, on expert and expert-tensor ranks: no read before a
// write, no shape that disagrees with a contract, no gradient missing.
TEST(Lower, EveryShippedModelLowersToASoundProgram) {
  int lowered = 0;
  for (const auto& file : shipped()) {
    for (const bool full : {false, true}) {
      Problem p = problem_of(file);
      if (full) train_everything(p.workload);
      for (const int etp : {1, 2})
        for (const Recompute r : {Recompute::none, Recompute::selective, Recompute::full}) {
          EXPECT_EQ(verify(lower_unverified(p, plan_of(p, {.pp = 1, .ep = 2, .etp = etp, .dp_shard = 8}, r, 2), 0)), std::vector<std::string>{}) << file.filename();
          ++lowered;
        }
    }
  }
  EXPECT_GE(lowered, 88 * 12);
}

TEST(Lower, EveryStageOfAPipelineIsSound) {
  const Problem p = problem_of(MOEPLAN_SOURCE "/configs/models/kimi/kimi-k3.json");
  const Plan plan = plan_of(p, {.pp = 4, .ep = 8, .dp_shard = 8}, Recompute::full, 8);
  std::vector<Program> stages;
  for (int stage = 0; stage < 4; ++stage) {
    stages.push_back(lower_unverified(p, plan, stage * 8));
    EXPECT_EQ(verify(stages.back()), std::vector<std::string>{});
  }
  EXPECT_EQ(verify_exchange(stages), std::vector<std::string>{});
  stages[1].instances.pop_back();
  std::erase_if(stages[2].instances, [](const Instance& i) { return i.phase == Phase::send_receive && i.micro_batch == 3; });
  EXPECT_FALSE(verify_exchange(stages).empty());
}

// K3 stores a block input at layers 0, 12, 24 ...: the second of four stages (from layer 23) receives those of 0 and 12 beside x.
TEST(Lower, StoredResidualBlocksCrossStages) {
  const Problem p = problem_of(MOEPLAN_SOURCE "/configs/models/kimi/kimi-k3.json");
  const Program program = lower(p, plan_of(p, {.pp = 4, .ep = 8, .dp_shard = 8}, Recompute::full, 8), 8);
  EXPECT_EQ(program.chunks.front().stream.value, 2 * 4096 * 7168);
  EXPECT_EQ(program.chunks.front().carried.value, 2 * program.chunks.front().stream.value);
}

// With adapters alone nothing before the first adapted layer needs a gradient: the embedding has no backward pass.
TEST(Lower, WhatComesBeforeTheFirstTrainedWeightHasNoBackward) {
  const Problem p = problem_of(MOEPLAN_SOURCE "/configs/models/qwen/qwen3-30b-a3b.json");
  const Program program = lower(p, plan_of(p, {.pp = 1, .ep = 2, .dp_shard = 2}, Recompute::none, 1), 0);
  EXPECT_TRUE(program.blocks[static_cast<std::size_t>(program.slots.front().block)].backward.empty());
  EXPECT_EQ(program.slots.front().sharding.dense_reduce.value, 0);
}

// Frozen weights are gathered and have no gradient to reduce; adapters of q, k, v, o have: r (in + out) each, fp32.
TEST(Lower, OnlyTrainedGradientsAreReduced) {
  Problem p = problem_of(MOEPLAN_SOURCE "/configs/models/qwen/qwen3-30b-a3b.json");
  p.workload.experts = {};
  p.workload.dense = {};
  const Program program = lower(p, plan_of(p, {.pp = 1, .ep = 2, .dp_shard = 2}, Recompute::none, 1), 0);
  const std::int64_t h = 2048, q = 32 * 128, kv = 4 * 128, r = 64;
  EXPECT_EQ(program.slots[1].sharding.dense_reduce.value, 4 * r * ((h + q) + 2 * (h + kv) + (q + h)));
}

// 1F1B: min(m, p - stage) forwards before the first backward.
TEST(Lower, InFlightMicroBatchesAreThoseOf1F1B) {
  const Problem p = problem_of(MOEPLAN_SOURCE "/configs/models/qwen/qwen3-30b-a3b.json");
  const Plan plan = plan_of(p, {.pp = 4, .ep = 1, .dp_shard = 1}, Recompute::none, 8);
  for (int stage = 0; stage < 4; ++stage) {
    const Program program = lower(p, plan, stage);
    int forwards = 0;
    for (const Instance& i : program.instances) {
      if (i.phase == Phase::backward) break;
      forwards += i.phase == Phase::forward && i.slot == static_cast<std::int32_t>(program.slots.size()) - 1;
    }
    EXPECT_EQ(forwards, in_flight(plan, stage)) << stage;
    EXPECT_EQ(forwards, 4 - stage);
  }
}

TEST(Lower, ARankOutsideThePlanIsRefused) {
  const Problem p = problem_of(MOEPLAN_SOURCE "/configs/models/qwen/qwen3-30b-a3b.json");
  EXPECT_THROW((void)lower(p, plan_of(p, {.pp = 1, .ep = 1, .dp_shard = 2}, Recompute::none, 1), 2), InputError);
}

}  // namespace
}  // namespace moeplan
