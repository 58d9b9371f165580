#pragma once
/// Pipeline splits of a model: which slots (embedding, layers, head) each stage holds, as runs of equal kinds. Stages of equal runs
/// share a class, so that their passes are priced once.

#include "planner/evaluator_shared.hpp"
#include "planner/stage_pass.hpp"

namespace moeplan {

/// A virtual stage on its stage: its slots [first, end) of SplitStage::kinds.
struct SplitChunk {
  std::size_t first = 0, end = 0;
  std::int64_t first_layer = 0, end_layer = 0;
  bool begins_model = false, ends_model = false;
  bool operator==(const SplitChunk&) const = default;
};

struct SplitStage {
  std::vector<std::size_t> kinds;             ///< of its slots, chunk after chunk
  std::vector<SplitChunk> chunks;
  std::size_t runs = 0;                       ///< index into StageSplit::classes; with virtual stages of no use
  std::int64_t first_layer = 0, end_layer = 0;   ///< of the first chunk
  std::vector<std::int64_t> count;            ///< slots per kind
};

struct StageSplit {
  std::vector<std::int64_t> stage_layers;     ///< of each virtual stage, in model order
  std::vector<SplitStage> stages;
  std::vector<std::vector<SlotRun>> classes;  ///< the last stage's class is its own: it keeps its last gathered copy
};

/// `virtual_stages` of each stage; virtual stage i runs on stage i mod pp.
[[nodiscard]] StageSplit stage_split(const Evaluator::Shared& shared, std::vector<std::int64_t> stage_layers, int virtual_stages = 1);

}  // namespace moeplan
