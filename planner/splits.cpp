#include "planner/splits.hpp"

#include <algorithm>

namespace moeplan {

StageSplit stage_split(const Evaluator::Shared& shared, std::vector<std::int64_t> stage_layers, int virtual_stages) {
  StageSplit out;
  const std::size_t all = stage_layers.size(), pp = all / static_cast<std::size_t>(virtual_stages);
  out.stages.resize(pp);
  for (SplitStage& stage : out.stages) stage.count.assign(shared.example.size(), 0);
  std::int64_t layer = 0;
  for (std::size_t i = 0; i < all; ++i) {
    SplitStage& stage = out.stages[i % pp];
    SplitChunk chunk{.first = stage.kinds.size(), .end = 0, .first_layer = layer, .end_layer = layer + stage_layers[i], .begins_model = i == 0, .ends_model = i + 1 == all};
    layer = chunk.end_layer;
    // Slot 0 of the model is the embedding, the one after its layers the head.
    const auto first = static_cast<std::size_t>(chunk.begins_model ? 0 : chunk.first_layer + 1), end = static_cast<std::size_t>(chunk.end_layer + (chunk.ends_model ? 2 : 1));
    for (std::size_t slot = first; slot < end; ++slot) {
      stage.kinds.push_back(shared.kind_of[slot]);
      ++stage.count[shared.kind_of[slot]];
    }
    chunk.end = stage.kinds.size();
    if (stage.chunks.empty()) stage.first_layer = chunk.first_layer, stage.end_layer = chunk.end_layer;
    stage.chunks.push_back(chunk);
  }
  for (std::size_t s = 0; s < pp; ++s) {
    SplitStage& stage = out.stages[s];
    std::vector<SlotRun> runs;
    for (const std::size_t kind : stage.kinds) {
      if (runs.empty() || static_cast<std::size_t>(runs.back().kind) != kind) runs.push_back({static_cast<std::int32_t>(kind), 0});
      ++runs.back().count;
    }
    const auto known = s + 1 == pp ? out.classes.end() : std::find(out.classes.begin(), out.classes.end(), runs);
    stage.runs = static_cast<std::size_t>(known - out.classes.begin());
    if (known == out.classes.end()) out.classes.push_back(std::move(runs));
  }
  out.stage_layers = std::move(stage_layers);
  return out;
}

}  // namespace moeplan
