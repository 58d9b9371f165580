#include "gui/models/expert_view.hpp"

#include <algorithm>

namespace moeplan::gui {
namespace {

const MoeFfn* moeOf(const LayerSpec& layer) {
  for (const Sublayer& s : layer.sublayers)
    if (const auto* moe = std::get_if<MoeFfn>(&s.mixer)) return moe;
  return nullptr;
}

}  // namespace

std::vector<std::int64_t> expertDegrees(const Problem& problem) {
  std::int64_t experts = 0;
  for (const LayerSpec& layer : problem.model.layers)
    if (const MoeFfn* moe = moeOf(layer)) experts = std::max(experts, moe->experts);
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d <= std::min<std::int64_t>({experts, problem.cluster.devices(), 1024}); ++d)
    if (experts % d == 0 && problem.cluster.devices() % d == 0) out.push_back(d);
  return out;
}

ExpertView expertView(const Problem& problem, const Plan* plan, ExpertRequest request) {
  ExpertView out;
  double width = 0;
  for (std::size_t i = 0; i < problem.model.layers.size(); ++i) {
    const MoeFfn* moe = moeOf(problem.model.layers[i]);
    if (!moe) continue;
    out.layers.push_back(static_cast<std::int64_t>(i));
    out.experts = std::max(out.experts, moe->experts);
    out.top_k = moe->top_k;
    width = static_cast<double>(moe->latent > 0 ? moe->latent : problem.model.hidden);
  }
  if (out.layers.empty()) return out;
  out.shares = expert_shares(problem.load, static_cast<std::int64_t>(out.layers.size()), out.experts);
  const std::vector<std::int64_t> degrees = expertDegrees(problem);
  std::int64_t ranks = 1;
  for (const std::int64_t d : degrees)
    if (d <= request.ranks) ranks = d;
  request.ranks = ranks;
  request.layer = std::clamp<std::int64_t>(request.layer, 0, static_cast<std::int64_t>(out.layers.size()) - 1);
  // As many slots on every rank.
  request.replicas = std::clamp<std::int64_t>((request.replicas + ranks - 1) / ranks * ranks, 0, 4 * out.experts / ranks * ranks);
  out.request = request;
  const std::int64_t slots = out.experts + request.replicas;
  for (std::size_t l = 0; l < out.shares.size(); ++l) {
    const Placement placed = balanced(out.shares[l], ranks, slots);
    out.worstBefore += (rank_factor(out.shares[l], ranks) - 1) / static_cast<double>(out.shares.size());
    out.worstAfter += (rank_factor(out.shares[l], placed) - 1) / static_cast<double>(out.shares.size());
    out.placements.push_back(placed);
    if (static_cast<std::int64_t>(l) != request.layer) continue;
    out.before = rank_loads(out.shares[l], ranks);
    out.after = rank_loads(out.shares[l], placed);
    if (request.capacity > 0) out.dropped = drop_rate(out.shares[l], request.capacity);
  }
  out.bytesPerCopy = 2 * width;
  out.copies = static_cast<double>(problem.workload.sequence_length * (plan ? plan->micro_batch : 1) * out.top_k);
  return out;
}

std::vector<std::vector<double>> heatCells(const ExpertView& v, HeatMap map) {
  std::vector<std::vector<double>> out;
  for (std::size_t l = 0; l < v.shares.size(); ++l) {
    const Shares& shares = v.shares[l];
    const auto experts = static_cast<double>(v.experts);
    std::vector<double>& row = out.emplace_back();
    switch (map) {
      case HeatMap::experts_before:
        for (const double s : shares) row.push_back(s * experts);
        break;
      case HeatMap::slots_after: {
        const std::vector<std::int64_t>& slots = v.placements[l].expert;
        std::vector<std::int64_t> copies(shares.size(), 0);
        for (const std::int64_t e : slots) ++copies[static_cast<std::size_t>(e)];
        for (const std::int64_t e : slots) row.push_back(shares[static_cast<std::size_t>(e)] * experts / static_cast<double>(copies[static_cast<std::size_t>(e)]));
        break;
      }
      case HeatMap::ranks_before: row = rank_loads(shares, v.request.ranks); break;
      case HeatMap::ranks_after: row = rank_loads(shares, v.placements[l]); break;
    }
  }
  return out;
}

std::optional<std::int64_t> expertAt(const ExpertView& v, HeatMap map, std::size_t layer, std::int64_t cell) {
  if (map == HeatMap::experts_before) return cell;
  if (map == HeatMap::slots_after) return v.placements[layer].expert[static_cast<std::size_t>(cell)];
  return std::nullopt;
}

}  // namespace moeplan::gui
