/// What a runtime keeps of a block for its backward pass, by hand on one layer of a small model with experts.

#include <gtest/gtest.h>

#include <set>

#include "core/configs.hpp"
#include "sim/program/architectures/architecture.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

Problem with_experts() {
  const std::filesystem::path configs = std::filesystem::path(MOEPLAN_SOURCE) / "configs";
  Problem p;
  p.model = import_model_file(configs / "models" / "tiny" / "tiny-qwen3-moe.json");
  p.cluster = load_cluster(configs, "8xh100");
  for (Tuning Workload::*w : {&Workload::attention, &Workload::experts, &Workload::router, &Workload::embedding,
                              &Workload::head, &Workload::norm, &Workload::other})
    p.workload.*w = Tuning{.training = Training::full};
  p.workload.sequence_length = 1024;
  return p;
}

/// Bytes kept by the block that holds experts, each buffer once, and the names of its values.
struct Kept {
  std::int64_t bytes = 0;
  std::set<std::string> names;
};

Kept kept_of(const Problem& problem) {
  Plan plan;
  plan.stage_layers = {static_cast<std::int64_t>(problem.model.layers.size())};
  plan.recompute = Recompute::none;
  const Program program = lower(problem, plan, 0);
  for (const Block& block : program.blocks) {
    Kept out;
    std::set<ValueId> roots;
    bool experts = false;
    for (const BlockNode& node : block.forward)
      if (const auto* call = std::get_if<OpCall>(&node.call))
        experts = experts || std::holds_alternative<op::GroupedLinear>(call->op);
    if (!experts) continue;
    for (const ValueId v : block.kept) {
      const ValueId root = block.alias[static_cast<std::size_t>(v)];
      out.names.insert(block.values[static_cast<std::size_t>(root)].name);
      if (roots.insert(root).second) out.bytes += block.values[static_cast<std::size_t>(root)].bytes().value;
    }
    return out;
  }
  throw std::logic_error("the model has no experts");
}

TEST(RuntimeForm, DropsExpertOutputsWhereActivationsAreWeighted) {
  Problem problem = with_experts();
  const Kept plain = kept_of(problem);
  problem.runtime.kept["weighted_activation"] = 1;
  const Kept weighted = kept_of(problem);
  // Two experts a token, each a row of the hidden width in bf16.
  EXPECT_EQ(plain.bytes - weighted.bytes, 1024 * 2 * problem.model.hidden * 2);
}

TEST(RuntimeForm, KeepsInputsOfNarrowProductsInTheirType) {
  Problem problem = with_experts();
  problem.runtime.kept["weighted_activation"] = 1;
  const Kept wide = kept_of(problem);
  problem.runtime.compute = DType::fp8;
  EXPECT_EQ(kept_of(problem).bytes, wide.bytes)
      << "a runtime that keeps bf16 inputs keeps them whatever it multiplies in";
  problem.runtime.kept["narrow_input"] = 1;
  const Kept narrow = kept_of(problem);
  EXPECT_LT(narrow.bytes, wide.bytes);
  EXPECT_GT(narrow.bytes, wide.bytes / 2);
  EXPECT_TRUE(narrow.names.contains("input in the type of the product"));
}

}  // namespace
}  // namespace moeplan
