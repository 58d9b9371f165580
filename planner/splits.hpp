#pragma once
/// Pipeline splits of a model: which slots (embedding, layers, head) each stage holds, as runs of equal kinds. Stages of equal runs
/// share a class, so that their passes are priced once.

#include "planner/evaluator_shared.hpp"
#include "planner/stage_pass.hpp"

namespace moeplan {

struct SplitStage {
  std::size_t first = 0, end = 0;             ///< slots of the model
  std::vector<std::size_t> kinds;             ///< of those slots
  std::size_t runs = 0;                       ///< index into StageSplit::classes
  std::int64_t first_layer = 0, end_layer = 0;
  std::vector<std::int64_t> count;            ///< slots per kind
};

struct StageSplit {
  std::vector<std::int64_t> stage_layers;
  std::vector<SplitStage> stages;
  std::vector<std::vector<SlotRun>> classes;  ///< the last stage's class is its own: it keeps its last gathered copy
};

[[nodiscard]] StageSplit stage_split(const Evaluator::Shared& shared, std::vector<std::int64_t> stage_layers);

}  // namespace moeplan
