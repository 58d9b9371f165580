#include "planner/load_spread.hpp"

#include <algorithm>
#include <numeric>

#include "sim/load/expert_load.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kValues = 128;

/// Means of parts `first` to `last` of `parts` that `values` would fall into if sorted; which comes where within a part is no matter.
void means_in_order(std::vector<double>& values, std::size_t parts, std::size_t first, std::size_t last, std::vector<double>& out) {
  const auto begins = [&](std::size_t part) { return values.begin() + static_cast<std::ptrdiff_t>(part * values.size() / parts); };
  if (last - first > 1) {
    const std::size_t middle = (first + last) / 2;
    std::nth_element(begins(first), begins(middle), begins(last));
    means_in_order(values, parts, first, middle, out);
    means_in_order(values, parts, middle, last, out);
  } else {
    out.push_back(std::accumulate(begins(first), begins(last), 0.0) / static_cast<double>(begins(last) - begins(first)));
  }
}

}  // namespace

std::vector<double> load_spread(const Problem& problem) {
  if (std::holds_alternative<UniformLoad>(problem.load.distribution)) return {};
  std::int64_t layers = 0, experts = 0;
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* moe = std::get_if<MoeFfn>(&s.mixer)) ++layers, experts = moe->experts;
  if (layers == 0 || experts == 0) return {};
  std::vector<double> all;
  all.reserve(static_cast<std::size_t>(layers * experts));
  for (const Shares& shares : expert_shares(problem.load, layers, experts))
    for (const double share : shares) all.push_back(share * static_cast<double>(experts));
  std::vector<double> out;
  const std::size_t parts = std::min(kValues, all.size());
  means_in_order(all, parts, 0, parts, out);
  return out;
}

}  // namespace moeplan
