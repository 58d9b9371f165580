#include "planner/splits.hpp"

#include <algorithm>

namespace moeplan {

StageSplit stage_split(const Evaluator::Shared& shared, std::vector<std::int64_t> stage_layers) {
  StageSplit out;
  std::size_t next = 1;
  const std::size_t pp = stage_layers.size();
  for (std::size_t s = 0; s < pp; ++s) {
    SplitStage stage;
    stage.first = s == 0 ? 0 : next;
    next += static_cast<std::size_t>(stage_layers[s]);
    stage.end = s + 1 == pp ? next + 1 : next;
    stage.first_layer = static_cast<std::int64_t>(stage.first == 0 ? 0 : stage.first - 1);
    stage.end_layer = std::min(static_cast<std::int64_t>(stage.end) - 1, static_cast<std::int64_t>(shared.outline.kinds.size()));
    stage.count.assign(shared.example.size(), 0);
    std::vector<SlotRun> runs;
    for (std::size_t i = stage.first; i < stage.end; ++i) {
      const std::size_t kind = shared.kind_of[i];
      stage.kinds.push_back(kind);
      ++stage.count[kind];
      if (runs.empty() || static_cast<std::size_t>(runs.back().kind) != kind) runs.push_back({static_cast<std::int32_t>(kind), 0});
      ++runs.back().count;
    }
    const auto known = s + 1 == pp ? out.classes.end() : std::find(out.classes.begin(), out.classes.end(), runs);
    stage.runs = static_cast<std::size_t>(known - out.classes.begin());
    if (known == out.classes.end()) out.classes.push_back(std::move(runs));
    out.stages.push_back(std::move(stage));
  }
  out.stage_layers = std::move(stage_layers);
  return out;
}

}  // namespace moeplan
