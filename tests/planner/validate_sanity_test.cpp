/// Predictions of the shipped rows when one thing of them is changed: what must not become slower or larger does not.

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "planner/validate/predict.hpp"

namespace moeplan::validation {
namespace {

constexpr double kNoise = 1.001;

struct Shipped {
  Rows rows;
  Library library;
};

const Shipped& shipped() {
  static const Shipped out = [] {
    const std::filesystem::path configs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";
    Shipped s{read_rows(configs / "measured"), {configs, load_words(configs), {}}};
    s.library.models = s.rows.models;
    return s;
  }();
  return out;
}

/// Every `step`-th row of confidence high that is complete, as a case that keeps the recompute and the offload it is given.
std::vector<Case> cases(std::size_t step) {
  std::vector<Case> out;
  for (std::size_t i = 0; i < shipped().rows.rows.size(); i += step) {
    const Row& row = shipped().rows.rows[i];
    if (row.confidence.value_or("high") != "high" || row.failed || missing_field(row, shipped().library)) continue;
    Case c = convert(row, shipped().library);
    c.recompute_unsaid = c.paged_optimizer = false;
    if (c.plan.offload == Offload::none && !c.every_second_product) out.push_back(std::move(c));
  }
  return out;
}

Prediction predicted(const Case& c) { return predict(c, shipped().library.words); }

TEST(Sanity, MoreRecomputeIsNeverFasterNorLarger) {
  std::vector<Case> some = cases(31);
  EXPECT_GT(some.size(), 10u);
  for (Case& c : some) {
    double time = 0, memory = 1e30;
    for (const Recompute r : {Recompute::none, Recompute::selective, Recompute::full}) {
      c.plan.recompute = r;
      const Prediction p = predicted(c);
      EXPECT_LE(time, p.step.value * kNoise) << c.id;
      EXPECT_LE(p.allocated.value, memory * kNoise) << c.id;
      time = p.step.value, memory = p.allocated.value;
    }
  }
}

TEST(Sanity, InterleavedStagesAreNeverSlower) {
  int compared = 0;
  for (Case& c : cases(17)) {
    if (c.plan.parallelism.pp == 1) continue;
    c.virtual_stages = 1;
    const double plain = predicted(c).step.value;
    c.virtual_stages = 4;
    EXPECT_LT(predicted(c).step.value, plain) << c.id;
    ++compared;
  }
  EXPECT_GT(compared, 5);
}

// From four micro-batches up, so that gradients of several are summed in both.
TEST(Sanity, SmallerMicroBatchesNeedNoMoreMemory) {
  int compared = 0;
  for (Case& c : cases(11)) {
    if (c.plan.micro_batch % 2 != 0 || c.plan.micro_batches < 2 * c.plan.parallelism.pp) continue;
    const double whole = predicted(c).allocated.value;
    c.plan.micro_batch /= 2, c.plan.micro_batches *= 2;
    EXPECT_LE(predicted(c).allocated.value, whole * kNoise) << c.id;
    ++compared;
  }
  EXPECT_GT(compared, 10);
}

TEST(Sanity, MoreTokensAreNeverFasterNorSmaller) {
  std::vector<Case> some = cases(37);
  EXPECT_GT(some.size(), 10u);
  for (Case& c : some) {
    const Prediction before = predicted(c);
    Case more = c;
    more.plan.micro_batches *= 2;
    EXPECT_LT(before.step.value, predicted(more).step.value) << c.id;
    more = c;
    more.problem.workload.sequence_length *= 2;
    more.problem.model.learned_positions *= 2;
    const Prediction longer = predicted(more);
    EXPECT_LE(before.step.value, longer.step.value * kNoise) << c.id;
    EXPECT_LE(before.allocated.value, longer.allocated.value * kNoise) << c.id;
  }
}

/// A row converts, or says what it lacks.
void converts(const Row& row) {
  try {
    const Case c = convert(row, shipped().library);
    EXPECT_GT(c.plan.micro_batches, 0) << row.id;
  } catch (const InputError& e) {
    EXPECT_FALSE(std::string(e.what()).empty()) << row.id;
  }
}

TEST(Sanity, WhatARowDoesNotSayNeverKeepsItFromBeingScored) {
  int rows = 0;
  for (std::size_t i = 0; i < shipped().rows.rows.size(); i += 13) {
    const Row& row = shipped().rows.rows[i];
    if (missing_field(row, shipped().library) || !row.measured.step_time_s) continue;
    for (const auto each : {&Row::source_title, &Row::framework_version, &Row::interconnect, &Row::model_kind, &Row::method, &Row::precision,
                            &Row::sharding, &Row::recompute, &Row::offload, &Row::lora_targets, &Row::optimizer, &Row::moe_notes,
                            &Row::notes}) {
      Row without = row;
      without.*each = std::nullopt;
      EXPECT_NO_THROW((void)convert(without, shipped().library)) << row.id;
    }
    for (const auto each : {&Row::year, &Row::gpus_per_node, &Row::vpp, &Row::etp, &Row::lora_rank, &Row::global_batch}) {
      Row without = row;
      without.*each = std::nullopt;
      EXPECT_NO_THROW((void)convert(without, shipped().library)) << row.id;
    }
    for (const auto each : {&Row::tp, &Row::pp, &Row::cp, &Row::ep})
      for (const std::optional<std::int64_t> degree : {std::optional<std::int64_t>(), std::optional<std::int64_t>(3), std::optional<std::int64_t>(1 << 20)}) {
        Row other = row;
        other.*each = degree;
        converts(other);
      }
    ++rows;
  }
  EXPECT_GT(rows, 50);
}

}  // namespace
}  // namespace moeplan::validation
