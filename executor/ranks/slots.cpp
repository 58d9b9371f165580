#include "executor/ranks/slots.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "sim/load/placed.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

const MoeFfn* experts_of(const ModelSpec& model, std::int32_t layer) {
  for (const Sublayer& s : model.layers[index(layer)].sublayers)
    if (const auto* f = std::get_if<MoeFfn>(&s.mixer)) return f;
  return nullptr;
}

/// Each rank's slots by expert.
std::vector<std::int64_t> in_order(Placement p) {
  const auto each = static_cast<std::ptrdiff_t>(p.slots_per_rank());
  for (auto at = p.expert.begin(); at != p.expert.end(); at += each) std::sort(at, at + each);
  return std::move(p.expert);
}

Placement placement_of(const Problem& problem, const Plan& plan, const MoeFfn& f, const Shares& shares) {
  return placed(plan.experts, shares, std::max<std::int64_t>(1, f.groups), plan.parallelism, problem.cluster);
}

Shares shares_of(std::span<const std::int64_t> counts) {
  const auto all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  Shares out;
  for (const std::int64_t n : counts) out.push_back(static_cast<double>(n) / all);
  return out;
}

/// Gives the packs of experts of a fresh placement to the ranks that have most of them: the pairs of most common
/// experts first. Ranks of one node keep to each other.
std::vector<std::int64_t> near(const std::vector<std::int64_t>& fresh, const std::vector<std::int64_t>& now,
                               std::int64_t ranks, std::int64_t nodes) {
  const std::int64_t each = static_cast<std::int64_t>(fresh.size()) / ranks, node_ranks = ranks / nodes;
  std::map<std::int64_t, std::vector<std::int64_t>> holders;
  for (std::size_t s = 0; s < now.size(); ++s) holders[now[s]].push_back(static_cast<std::int64_t>(s) / each);
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> common;
  for (std::size_t s = 0; s < fresh.size(); ++s)
    for (const std::int64_t rank : holders[fresh[s]])
      if (const std::int64_t pack = static_cast<std::int64_t>(s) / each; pack / node_ranks == rank / node_ranks)
        ++common[{pack, rank}];
  std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, std::int64_t>> pairs(common.begin(), common.end());
  std::stable_sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::int64_t> pack_of(index(ranks), -1), rank_of(index(ranks), -1);
  for (const auto& [pair, n] : pairs)
    if (rank_of[index(pair.first)] < 0 && pack_of[index(pair.second)] < 0)
      rank_of[index(pair.first)] = pair.second, pack_of[index(pair.second)] = pair.first;
  for (std::int64_t pack = 0; pack < ranks; ++pack)
    for (std::int64_t rank = pack / node_ranks * node_ranks; rank_of[index(pack)] < 0; ++rank)
      if (pack_of[index(rank)] < 0) rank_of[index(pack)] = rank, pack_of[index(rank)] = pack;
  std::vector<std::int64_t> out;
  for (const std::int64_t pack : pack_of)
    out.insert(out.end(), fresh.begin() + pack * each, fresh.begin() + (pack + 1) * each);
  return out;
}

}  // namespace

ExpertSlots expected_slots(const Problem& problem, const Plan& plan) {
  ExpertSlots out;
  if (!places_experts(plan)) return out;
  std::int64_t routed = 0;
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers) routed += std::holds_alternative<MoeFfn>(s.mixer) ? 1 : 0;
  std::map<std::int64_t, std::vector<Shares>> by_experts;
  std::size_t row = 0;
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(problem.model.layers.size()); ++l) {
    const MoeFfn* f = experts_of(problem.model, l);
    if (!f) continue;
    auto& shares = by_experts[f->experts];
    const auto* trace = std::get_if<TraceLoad>(&problem.load.distribution);
    if (shares.empty() && trace &&
        (trace->counts.empty() || static_cast<std::int64_t>(trace->counts.front().size()) != f->experts))
      shares.assign(index(routed), Shares(index(f->experts), 1.0 / static_cast<double>(f->experts)));
    if (shares.empty()) shares = expert_shares(problem.load, routed, f->experts);
    out[l] =
        std::make_shared<const std::vector<std::int64_t>>(in_order(placement_of(problem, plan, *f, shares[row++])));
  }
  return out;
}

ExpertSlots slots_by_counts(const Problem& problem, const Plan& plan, const ExpertCounts& counts,
                            const ExpertSlots& now) {
  ExpertSlots out = now;
  const std::int64_t ranks = plan.parallelism.ep;
  for (const auto& [layer, all] : counts) {
    const MoeFfn* f = experts_of(problem.model, layer);
    const auto here = now.find(layer);
    if (!f || here == now.end()) continue;
    const std::span<const std::int64_t> routed(all.data(), index(f->experts));
    const double before = rank_max_over_mean(routed, here->second, ranks);
    if (before == 0) continue;
    const std::int64_t nodes =
        std::max<std::int64_t>(1, ranks * plan.parallelism.etp / problem.cluster.devices_per_node);
    const bool within = plan.experts.placement == ExpertPlacement::hierarchical && ranks % nodes == 0;
    auto fresh = std::make_shared<const std::vector<std::int64_t>>(
        near(in_order(placement_of(problem, plan, *f, shares_of(routed))), *here->second, ranks, within ? nodes : 1));
    if (rank_max_over_mean(routed, fresh, ranks) < before) out[layer] = std::move(fresh);
  }
  return out;
}

double rank_max_over_mean(std::span<const std::int64_t> counts, const Slots& slots, std::int64_t ranks) {
  if (std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == 0) return 0;
  const Shares served = shares_of(counts);
  return slots ? rank_factor(served, Placement{*slots, ranks})
               : rank_factor(served, contiguous(static_cast<std::int64_t>(served.size()), ranks));
}

}  // namespace moeplan
