#include "planner/load_spread.hpp"

#include <algorithm>

#include "sim/load/expert_load.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kValues = 128;

}  // namespace

std::vector<double> load_spread(const Problem& problem) {
  if (std::holds_alternative<UniformLoad>(problem.load.distribution)) return {};
  std::int64_t layers = 0, experts = 0;
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* moe = std::get_if<MoeFfn>(&s.mixer)) ++layers, experts = moe->experts;
  if (layers == 0 || experts == 0) return {};
  std::vector<double> all;
  for (const Shares& shares : expert_shares(problem.load, layers, experts))
    for (const double share : shares) all.push_back(share * static_cast<double>(experts));
  std::sort(all.begin(), all.end());
  std::vector<double> out;
  for (std::size_t i = 0; i < std::min(kValues, all.size()); ++i) {
    const std::size_t first = i * all.size() / std::min(kValues, all.size()), last = (i + 1) * all.size() / std::min(kValues, all.size());
    double sum = 0;
    for (std::size_t j = first; j < last; ++j) sum += all[j];
    out.push_back(sum / static_cast<double>(last - first));
  }
  return out;
}

}  // namespace moeplan
