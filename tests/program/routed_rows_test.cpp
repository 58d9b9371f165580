/// Another load by setting rows against lowering again.

#include "sim/program/routed_rows.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "sim/program/architectures/architecture.hpp"
#include "sim/program/unnamed.hpp"

namespace moeplan {
namespace {

void expect_equal(const std::vector<BlockNode>& a, const std::vector<BlockNode>& b, const std::string& where) {
  ASSERT_EQ(a.size(), b.size()) << where;
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].call == b[i].call) << where << ' ' << i;
    EXPECT_EQ(a[i].reads, b[i].reads) << where;
    EXPECT_EQ(a[i].writes, b[i].writes) << where;
  }
}

void expect_equal(const Block& a, const Block& b, const std::string& where) {
  ASSERT_EQ(a.values.size(), b.values.size()) << where;
  for (std::size_t v = 0; v < a.values.size(); ++v)
    EXPECT_EQ(a.values[v].shape, b.values[v].shape) << where << ' ' << a.values[v].name;
  expect_equal(a.forward, b.forward, where + " forward");
  expect_equal(a.backward, b.backward, where + " backward");
  expect_equal(a.weight_backward, b.weight_backward, where + " weight backward");
}

std::int64_t routed(const ModelSpec& model) {
  std::int64_t experts = 0;
  for (const LayerSpec& l : model.layers)
    for (const Sublayer& s : l.sublayers)
      if (const MoeFfn* moe = std::get_if<MoeFfn>(&s.mixer)) experts = moe->experts;
  return experts;
}

// Every layer kind of every shipped mixture of experts, trained and frozen experts, in every recompute mode and with
// split backward passes; whole and in pieces.
TEST(RoutedRows, SetAreThoseOfABlockLoweredAtThatLoad) {
  int compared = 0, followed = 0;
  for (const auto& e : std::filesystem::recursive_directory_iterator(MOEPLAN_SOURCE "/configs/models")) {
    if (e.path().extension() != ".json" || e.path().filename() == "INDEX.json") continue;
    Problem p;
    p.model = import_model_file(e.path());
    p.workload.sequence_length = 1024;
    if (routed(p.model) == 0 || routed(p.model) % 4 != 0) continue;
    for (const Training training : {Training::frozen, Training::full, Training::lora})
      for (const auto& [r, chunks] : {std::pair{Recompute::none, 1}, {Recompute::selective, 1}, {Recompute::full, 1}, {Recompute::none, 3}, {Recompute::full, 2}}) {
        if (chunks > 1 && training == Training::full) continue;
        p.workload.experts = {.training = training, .rank = 8};
        const ModelOutline model = outline(p.model, p.workload);
        Plan plan;
        plan.parallelism = {.ep = 4, .dp_shard = 4};
        plan.recompute = r;
        plan.experts.chunks = chunks;
        if (r == Recompute::none) plan.schedule = Schedule::zero_bubble;
        plan.stage_layers = {static_cast<std::int64_t>(p.model.layers.size())};
        std::string last;
        for (std::size_t l = 0; l < model.kinds.size(); ++l) {
          if (model.kinds[l] == last) continue;
          last = model.kinds[l];
          Block block = lower_slot(p, plan, model, static_cast<std::int32_t>(l), 1.0);
          const auto rows = routed_rows(block);
          ASSERT_TRUE(rows) << e.path().filename();
          expect_equal(block, lower_slot_unnamed(p, plan, model, static_cast<std::int32_t>(l), 1.0),
                       e.path().filename().string() + " unnamed");
          followed += rows->values.empty() ? 0 : 1;
          for (const double scale : {1.37, 4.0, 0.5}) {
            set_routed_scale(block, *rows, scale);
            expect_equal(block, lower_slot(p, plan, model, static_cast<std::int32_t>(l), scale),
                         e.path().filename().string() + " layer " + std::to_string(l));
            ++compared;
          }
        }
      }
  }
  EXPECT_GT(followed, 300);
  EXPECT_GT(compared, 1000);
}

TEST(RoutedRows, AreSetAnewUnlessMoreThanThemDependsOnTheLoad) {
  Problem p;
  p.model = import_model_file(MOEPLAN_SOURCE "/configs/models/qwen/qwen3-30b-a3b.json");
  p.workload.sequence_length = 4096;
  Plan plan;
  plan.parallelism = {.ep = 4, .etp = 2, .dp_shard = 8};
  plan.stage_layers = {static_cast<std::int64_t>(p.model.layers.size())};
  EXPECT_FALSE(routed_rows(lower_slot(p, plan, outline(p.model, p.workload), 1, 1.0)));
  plan.parallelism.etp = 1;
  EXPECT_TRUE(routed_rows(lower_slot(p, plan, outline(p.model, p.workload), 1, 1.0)));
  plan.offload = Offload::activations;
  plan.recompute = Recompute::none;
  EXPECT_FALSE(routed_rows(lower_slot(p, plan, outline(p.model, p.workload), 1, 1.0)));
  plan.offload = Offload::none;
  plan.experts.chunks = 2;
  EXPECT_TRUE(routed_rows(lower_slot(p, plan, outline(p.model, p.workload), 1, 1.0)));
}

}  // namespace
}  // namespace moeplan
