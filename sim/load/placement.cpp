#include "sim/load/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/error.hpp"

namespace moeplan {
namespace {

/// Items by descending weight, ties by index, each to the lightest pack with room. Returns the pack of each item; every pack gets
/// items / packs of them.
std::vector<std::size_t> packed(const std::vector<double>& weight, std::size_t packs) {
  const std::size_t room = weight.size() / packs;
  std::vector<std::size_t> pack(weight.size()), filled(packs, 0);
  std::vector<std::pair<double, std::size_t>> order, open;   // items and packs with room, by (weight, index)
  for (std::size_t i = 0; i < weight.size(); ++i) order.emplace_back(-weight[i], i);
  std::sort(order.begin(), order.end());
  for (std::size_t p = 0; p < packs; ++p) open.emplace_back(0.0, p);   // a heap, the lightest first
  for (const auto& [negative, item] : order) {
    std::pop_heap(open.begin(), open.end(), std::greater());
    auto& [sum, best] = open.back();
    pack[item] = best;
    sum -= negative;
    if (++filled[best] < room) std::push_heap(open.begin(), open.end(), std::greater());
    else open.pop_back();
  }
  return pack;
}

/// Replicas of each item so that they add up to `slots`, each extra one where load per replica is largest.
std::vector<std::int64_t> replicated(const std::vector<double>& weight, std::size_t slots) {
  std::vector<std::int64_t> count(weight.size(), 1);
  std::vector<std::pair<double, std::size_t>> most;   // a heap of (-load per replica, index)
  for (std::size_t i = 0; i < weight.size(); ++i) most.emplace_back(-weight[i], i);
  std::make_heap(most.begin(), most.end(), std::greater());
  for (std::size_t s = weight.size(); s < slots; ++s) {
    std::pop_heap(most.begin(), most.end(), std::greater());
    const std::size_t best = most.back().second;
    ++count[best];
    most.back().first = -(weight[best] / static_cast<double>(count[best]));
    std::push_heap(most.begin(), most.end(), std::greater());
  }
  return count;
}

void require(bool ok, const std::string& what, const std::string& fix) {
  if (!ok) throw InputError("placement", what, fix);
}

}  // namespace

Placement contiguous(std::int64_t experts, std::int64_t ranks) {
  require(ranks > 0 && experts > 0 && experts % ranks == 0, fmt::format("{} experts on {} ranks", experts, ranks), "give a number of ranks that divides the experts");
  Placement p{std::vector<std::int64_t>(static_cast<std::size_t>(experts)), ranks};
  std::iota(p.expert.begin(), p.expert.end(), 0);
  return p;
}

Placement balanced(const Shares& planned, std::int64_t ranks, std::int64_t slots, std::int64_t groups, std::int64_t nodes) {
  const std::int64_t experts = static_cast<std::int64_t>(planned.size());
  require(ranks > 0 && slots >= experts && slots % ranks == 0, fmt::format("{} slots for {} experts on {} ranks", slots, experts, ranks),
          "give at least one slot per expert and the same number on each rank");
  require(groups > 0 && nodes > 0 && experts % groups == 0 && ranks % nodes == 0, fmt::format("{} groups and {} nodes for {} experts on {} ranks", groups, nodes, experts, ranks),
          "groups divide the experts, nodes the ranks");
  if (groups % nodes != 0) groups = nodes = 1;  // as EPLB: then it balances globally
  const std::size_t n = static_cast<std::size_t>(nodes), g = static_cast<std::size_t>(groups), group_size = planned.size() / g;
  std::vector<double> of_group(g, 0.0);
  for (std::size_t e = 0; e < planned.size(); ++e) of_group[e / group_size] += planned[e];
  const auto node_of = packed(of_group, n);
  const std::size_t ranks_here = static_cast<std::size_t>(ranks) / n, slots_here = static_cast<std::size_t>(slots) / n, room = slots_here / ranks_here;
  Placement out;
  out.ranks = ranks;
  for (std::size_t node = 0; node < n; ++node) {
    std::vector<std::int64_t> expert;
    std::vector<double> weight;
    for (std::size_t e = 0; e < planned.size(); ++e)
      if (node_of[e / group_size] == node) expert.push_back(static_cast<std::int64_t>(e)), weight.push_back(planned[e]);
    const auto count = replicated(weight, slots_here);
    std::vector<std::int64_t> slot_expert;
    std::vector<double> slot_weight;
    for (std::size_t i = 0; i < expert.size(); ++i)
      for (std::int64_t c = 0; c < count[i]; ++c) slot_expert.push_back(expert[i]), slot_weight.push_back(weight[i] / static_cast<double>(count[i]));
    const auto rank = packed(slot_weight, ranks_here);
    std::vector<std::vector<std::int64_t>> of_rank(ranks_here);
    for (std::size_t s = 0; s < slot_expert.size(); ++s) of_rank[rank[s]].push_back(slot_expert[s]);
    for (auto& each : of_rank) {
      require(each.size() == room, "slots that do not spread evenly", "give each node as many slots per rank");
      out.expert.insert(out.expert.end(), each.begin(), each.end());
    }
  }
  return out;
}

std::vector<double> rank_loads(const Shares& served, const Placement& placement) {
  std::vector<double> copies(served.size(), 0.0);
  for (const std::int64_t e : placement.expert) {
    require(e >= 0 && e < static_cast<std::int64_t>(served.size()), fmt::format("expert {} of {}", e, served.size()), "use a placement of this model");
    copies[static_cast<std::size_t>(e)] += 1;
  }
  std::vector<double> out(static_cast<std::size_t>(placement.ranks), 0.0);
  const std::size_t each = static_cast<std::size_t>(placement.slots_per_rank());
  for (std::size_t s = 0; s < placement.expert.size(); ++s) {
    const std::size_t e = static_cast<std::size_t>(placement.expert[s]);
    out[s / each] += served[e] / copies[e] * static_cast<double>(placement.ranks);
  }
  return out;
}

double rank_factor(const Shares& served, const Placement& placement) {
  const auto loads = rank_loads(served, placement);
  return *std::max_element(loads.begin(), loads.end());
}

double floor_without_replicas(const Shares& shares, std::int64_t ranks) {
  return std::max(1.0, *std::max_element(shares.begin(), shares.end()) * static_cast<double>(ranks));
}

}  // namespace moeplan
