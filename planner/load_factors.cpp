#include "planner/load_factors.hpp"

#include <algorithm>

namespace moeplan {

LoadFactors::LoadFactors(const Problem& problem) {
  std::int64_t experts = 0, top_k = 1;
  moe_before_.push_back(0);
  for (const LayerSpec& layer : problem.model.layers) {
    bool routed = false;
    for (const Sublayer& s : layer.sublayers) {
      const MoeFfn* moe = std::get_if<MoeFfn>(&s.mixer);
      if (!moe) continue;
      routed = true;
      experts = moe->experts;
      top_k = moe->top_k;
    }
    moe_before_.push_back(moe_before_.back() + (routed ? 1 : 0));
  }
  if (experts == 0) return;
  std::vector<std::int64_t> degrees;
  for (std::int64_t ep = 2; ep <= std::min(experts, problem.cluster.devices()); ++ep)
    if (experts % ep == 0 && problem.cluster.devices() % ep == 0) degrees.push_back(ep);
  if (degrees.empty()) return;
  table_.emplace(problem.load, static_cast<std::int64_t>(moe_before_.back()), experts, degrees,
                 Sampling{.sequences = kSequences, .sequence_length = problem.workload.sequence_length, .top_k = top_k});
}

FactorBand LoadFactors::stage(int ep, std::int64_t first, std::int64_t last) const {
  if (ep <= 1 || !table_) return {};
  return table_->stage(ep, moe_before_[static_cast<std::size_t>(first)], moe_before_[static_cast<std::size_t>(last)]);
}

}  // namespace moeplan
