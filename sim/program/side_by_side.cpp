#include <fmt/format.h>

#include <span>

#include "sim/program/block.hpp"

namespace moeplan {
namespace {

bool exchanges(const BlockNode& n) { return n.lane != Lane::compute; }
bool waits(const BlockNode& n) { return std::holds_alternative<HostWait>(n.call); }

/// Cuts a pass where its compute meets an exchange: each piece is compute calls and the exchanges issued after them.
std::vector<std::span<const BlockNode>> pieces(const std::vector<BlockNode>& nodes) {
  std::vector<std::span<const BlockNode>> out;
  std::size_t from = 0;
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const bool starts = waits(nodes[i]) || (!exchanges(nodes[i]) && exchanges(nodes[i - 1]));
    if (!starts) continue;
    out.emplace_back(nodes.data() + from, i - from);
    from = i;
  }
  if (!nodes.empty()) out.emplace_back(nodes.data() + from, nodes.size() - from);
  return out;
}

}  // namespace

Block side_by_side(const Block& forward, const Block& backward) {
  Block out;
  out.name = fmt::format("{} beside backward of {}", forward.name, backward.name);
  out.values = forward.values;
  out.category = forward.category;
  out.alias = forward.alias;
  out.weights = forward.weights;
  const auto values = static_cast<ValueId>(forward.values.size());
  const auto weights = static_cast<WeightId>(forward.weights.size());
  out.values.insert(out.values.end(), backward.values.begin(), backward.values.end());
  out.category.insert(out.category.end(), backward.category.begin(), backward.category.end());
  for (const ValueId a : backward.alias) out.alias.push_back(a + values);
  if (!forward.whole.empty() || !backward.whole.empty()) {
    for (std::size_t v = 0; v < forward.values.size(); ++v) out.whole.push_back(forward.whole.empty() ? static_cast<ValueId>(v) : forward.whole[v]);
    for (std::size_t v = 0; v < backward.values.size(); ++v) out.whole.push_back(values + (backward.whole.empty() ? static_cast<ValueId>(v) : backward.whole[v]));
  }
  out.weights.insert(out.weights.end(), backward.weights.begin(), backward.weights.end());
  const auto issue = [&](const BlockNode& node, bool shift) {
    BlockNode n = node;
    if (CommCall* comm = std::get_if<CommCall>(&n.call)) comm->beside_compute = comm->collective == Collective::dispatch || comm->collective == Collective::combine;
    if (shift) {
      n.is_backward = true;
      for (auto* list : {&n.reads, &n.writes, &n.operands, &n.gradients})
        for (ValueId& v : *list)
          if (v >= 0) v += values;
      for (WeightId& w : n.weights) w += weights;
    }
    out.forward.push_back(std::move(n));
  };
  const auto f = pieces(forward.forward), b = pieces(backward.backward);
  for (std::size_t i = 0; i < std::max(f.size(), b.size()); ++i) {
    if (i < f.size()) for (const BlockNode& n : f[i]) issue(n, false);
    if (i < b.size()) for (const BlockNode& n : b[i]) issue(n, true);
  }
  return out;
}

}  // namespace moeplan
