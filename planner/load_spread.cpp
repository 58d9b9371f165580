#include "planner/load_spread.hpp"

#include <algorithm>
#include <numeric>

#include "sim/load/placed.hpp"

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

/// Rows of each slot over their mean, experts of one layer having these shares.
void add_slots(const Shares& shares, const ExpertExchange& x, std::int64_t groups, const Parallelism& p, const ClusterSpec& cluster, std::vector<double>& out) {
  const Shares arrive = x.capacity_factor ? capped(shares, *x.capacity_factor, x.overflow == Overflow::reroute, x.pad) : shares;
  const double all = std::accumulate(arrive.begin(), arrive.end(), 0.0);
  if (x.replicas == 0) {
    for (const double share : arrive) out.push_back(share * static_cast<double>(arrive.size()) / all);
    return;
  }
  const Placement placement = placed(x, shares, groups, p, cluster);
  std::vector<double> copies(shares.size(), 0);
  for (const std::int64_t e : placement.expert) ++copies[static_cast<std::size_t>(e)];
  for (const std::int64_t e : placement.expert) out.push_back(arrive[static_cast<std::size_t>(e)] / copies[static_cast<std::size_t>(e)] * static_cast<double>(placement.expert.size()) / all);
}

}  // namespace

std::vector<double> load_spread(const Problem& problem) { return load_spread(problem, {}, {}); }

std::vector<double> load_spread(const Problem& problem, const ExpertExchange& x, const Parallelism& parallelism) {
  std::int64_t layers = 0, experts = 0, groups = 1;
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* moe = std::get_if<MoeFfn>(&s.mixer)) ++layers, experts = moe->experts, groups = std::max<std::int64_t>(1, moe->groups);
  const bool copies = x.replicas > 0 && (experts + x.replicas) % parallelism.ep == 0;
  if (layers == 0 || experts == 0 || (!copies && std::holds_alternative<UniformLoad>(problem.load.distribution)) || (x.capacity_factor && x.pad && !copies)) return {};
  ExpertExchange kept = x;
  kept.replicas = copies ? x.replicas : 0;
  std::vector<double> all;
  all.reserve(static_cast<std::size_t>(layers * (experts + kept.replicas)));
  for (const Shares& shares : expert_shares(problem.load, layers, experts)) add_slots(shares, kept, groups, parallelism, problem.cluster, all);
  std::vector<double> out;
  const std::size_t parts = std::min(kValues, all.size());
  means_in_order(all, parts, 0, parts, out);
  return out;
}

}  // namespace moeplan
