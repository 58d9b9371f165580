/// A layer kind of the search: what it holds and what it takes, under a group's plan and load.

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "planner/evaluator_shared.hpp"
#include "sim/cost/groups.hpp"
#include "sim/program/call_scratch.hpp"
#include "sim/program/unnamed.hpp"

namespace moeplan {
namespace {

/// Calls [first, end) of `seen` as they were priced.
PassSpread spread_of(std::span<const std::pair<std::size_t, Estimate>> seen) {
  std::map<std::size_t, PassSpread> by_operator;
  for (const auto& [what, e] : seen) {
    by_operator[what].below += e.median.value - e.low.value;
    by_operator[what].above += e.high.value - e.median.value;
  }
  PassSpread out;
  for (const auto& [what, each] : by_operator) {
    out.below += each.below * each.below;
    out.above += each.above * each.above;
  }
  return {std::sqrt(out.below), std::sqrt(out.above)};
}

/// Calls that err together share a number.
std::size_t error_group(const BlockNode& node) {
  if (const OpCall* op = std::get_if<OpCall>(&node.call)) return op->op.index();
  if (const CommCall* comm = std::get_if<CommCall>(&node.call)) return 1000 + static_cast<std::size_t>(comm->collective);
  return 2000;
}

/// What grows linearly with the rows of the hottest rank: `one` at the balanced load, `much` at `more` times it.
std::array<Bytes, kMemoryCategories> grown(std::array<Bytes, kMemoryCategories> one, const std::array<Bytes, kMemoryCategories>& much, double more, double factor) {
  if (more > 1)
    for (std::size_t c = 0; c < kMemoryCategories; ++c) one[c].value += std::llround(static_cast<double>(much[c].value - one[c].value) * (factor - 1) / (more - 1));
  return one;
}

/// What a kind is lowered and priced under.
struct Setting {
  Setting(const Evaluator::Shared& s, const Plan& p, std::size_t kind) : shared(s), plan(p), id(kind), links(links_of(s, p)) {}

  const Evaluator::Shared& shared;
  const Plan& plan;
  std::size_t id;
  Links links;
  HeldClock clock = shared.clocks.of(plan);

  [[nodiscard]] Block lowered(double scale) const { return lower_slot_unnamed(shared.problem, plan, shared.outline, shared.example[id], scale); }
  /// `copied`: the block's column copies.
  [[nodiscard]] Estimate price(const BlockNode& node, double skew, const std::function<Bytes(const BlockNode&)>& copied) const {
    if (const OpCall* op = std::get_if<OpCall>(&node.call)) {
      const Estimate e = shared.experts.price(plan, *op, clock);
      const Seconds copies = shared.prices.copies(copied(node));
      return {e.median + copies, e.low + copies, e.high + copies, e.basis};
    }
    if (const CommCall* comm = std::get_if<CommCall>(&node.call)) return links.price(*comm, group_shape(comm->group, plan.parallelism), skew);
    return shared.links.host_wait(group_shape(Group::expert, plan.parallelism));
  }
  [[nodiscard]] LentTo lent() const { return shared.contention ? lent_to(links, plan.parallelism) : LentTo{}; }
  /// A runtime's own copies of rows are not among what follows the load.
  [[nodiscard]] std::optional<RoutedRows> rows(const Block& block) const { return shared.problem.runtime.kept.empty() ? routed_rows(block) : std::nullopt; }

  /// Calls `f` with the kind's block under another load; the block stays at its own.
  template <class F>
  void at_load(PricedKind& k, double scale, const F& f) const {
    if (!k.rows) { f(lowered(scale)); return; }
    set_routed_scale(k.block, *k.rows, scale);
    f(k.block);
    set_routed_scale(k.block, *k.rows, k.scale);
  }
};

}  // namespace

std::array<Bytes, kMemoryCategories> kept_at(const PricedKind& k, double factor) { return grown(k.kept, k.kept_more, k.more, factor); }
std::array<Bytes, kMemoryCategories> put_off_at(const PricedKind& k, double factor) { return grown(k.put_off, k.put_off_more, k.more, factor); }

Bytes host_at(const PricedKind& k, double factor) {
  if (k.more <= 1) return k.host;
  return {k.host.value + std::llround(static_cast<double>(k.host_more.value - k.host.value) * (factor - 1) / (k.more - 1))};
}

void hold_kind(PricedKind& k, const Evaluator::Shared& shared, const Plan& plan, const FactorBand& load, std::size_t id) {
  const Setting setting{shared, plan, id};
  k.block = setting.lowered(1.0);
  const BlockMemory balanced = block_memory(k.block, shared.problem, plan);
  k.kept = balanced.kept;
  k.put_off = balanced.put_off;
  k.host = k.host_more = k.block.host;
  k.routed = std::any_of(k.block.values.begin(), k.block.values.end(), [](const Value& v) { return v.ragged; });
  if (k.routed && (load.p95.buffer != 1.0 || load.p50.step != 1.0)) k.rows = setting.rows(k.block);
  k.forward50 = k.forward95 = balanced.forward;
  k.backward50 = k.backward95 = balanced.backward;
  k.weight50 = k.weight95 = balanced.weight_backward;
  k.staged50 = k.staged95 = balanced.staged;
}

void load_kind(PricedKind& k, const Evaluator::Shared& shared, const Plan& plan, const FactorBand& load, std::size_t id) {
  if (!k.routed || load.p95.buffer == 1.0) return;
  const Setting setting{shared, plan, id};
  BlockMemory m95, m50;
  setting.at_load(k, load.p95.buffer, [&](const Block& b) { m95 = block_memory(b, shared.problem, plan), k.host_more = b.host; });
  if (load.p50.buffer == load.p95.buffer) m50 = m95;
  else setting.at_load(k, load.p50.buffer, [&](const Block& b) { m50 = block_memory(b, shared.problem, plan); });
  k.forward50 = m50.forward;
  k.backward50 = m50.backward;
  k.forward95 = m95.forward;
  k.backward95 = m95.backward;
  k.weight50 = m50.weight_backward;
  k.weight95 = m95.weight_backward;
  k.staged50 = m50.staged;
  k.staged95 = m95.staged;
  k.kept_more = m95.kept;
  k.put_off_more = m95.put_off;
  k.more = load.p95.buffer;
}

void time_kind(PricedKind& k, const Evaluator::Shared& shared, const Plan& plan, const FactorBand& load, std::size_t id) {
  const Setting setting{shared, plan, id};
  if (k.routed && load.p50.step != 1.0) {
    if (k.rows) set_routed_scale(k.block, *k.rows, load.p50.step);
    else k.block = setting.lowered(load.p50.step);
    k.scale = load.p50.step;
  }
  std::vector<std::pair<std::size_t, Estimate>> seen;   // forward first
  const auto copied = copied_bytes(k.block, shared.problem.runtime);   // views do not move between loads
  k.time50 = block_time(k.block, [&](const BlockNode& n) { return seen.emplace_back(error_group(n), setting.price(n, load.p50.step, copied)).second; }, setting.lent());
  const std::span<const std::pair<std::size_t, Estimate>> priced(seen);
  k.forward_spread = spread_of(priced.first(k.block.forward.size()));
  k.backward_spread = spread_of(priced.subspan(k.block.forward.size(), k.block.backward.size()));
  k.weight_spread = spread_of(priced.subspan(k.block.forward.size() + k.block.backward.size()));
  if (shared.contention) {
    std::vector<double> seconds;
    for (const auto& [what, e] : seen) seconds.push_back(e.median.value);
    const std::span<const double> all(seconds);
    k.forward_transfers = transfers(k.block.forward, all.first(k.block.forward.size()), k.time50.forward, setting.links, plan.parallelism);
    k.backward_transfers = transfers(k.block.backward, all.subspan(k.block.forward.size(), k.block.backward.size()), k.time50.backward, setting.links, plan.parallelism);
  }
  k.time95 = k.time50;
  if (!k.routed || load.p95.step == load.p50.step) return;
  // Of the calls those on rows and the exchange itself take another time.
  std::vector<bool> again(seen.size(), !k.rows);
  if (k.rows) {
    for (const std::size_t i : k.rows->forward) again[i] = true;
    for (const std::size_t i : k.rows->backward) again[k.block.forward.size() + i] = true;
    for (const std::size_t i : k.rows->weight_backward) again[k.block.forward.size() + k.block.backward.size() + i] = true;
  }
  std::size_t at = 0;
  setting.at_load(k, load.p95.step, [&](const Block& b) {
    k.time95 = block_time(b, [&](const BlockNode& n) {
      const std::size_t i = at++;
      return again[i] || std::holds_alternative<CommCall>(n.call) ? setting.price(n, load.p95.step, copied) : seen[i].second;
    }, setting.lent());
  });
}

SlotDelays delays_of(const Evaluator::Shared& shared, const Plan& plan, const PricedKind& k, const SlotSharding& cut) {
  if (!shared.contention || (k.forward_transfers.empty() && k.backward_transfers.empty())) return {};
  return slot_delays(k.time50.forward.total.value, k.time50.backward.total.value, slot_crossings(shared.problem.runtime, shared.ports, shared.links, plan.parallelism, cut, k.forward_transfers, k.backward_transfers));
}

Block block_at(const PricedKind& k, const Evaluator::Shared& shared, const Plan& plan, std::size_t id, double scale) {
  if (!k.routed) return k.block;
  if (!k.rows) return Setting{shared, plan, id}.lowered(scale);
  Block out = k.block;
  set_routed_scale(out, *k.rows, scale);
  return out;
}

double pair_seconds(const Block& forward, const Block& backward, const Evaluator::Shared& shared, const Plan& plan, double scale) {
  const Setting setting{shared, plan, 0};
  const Block both = side_by_side(forward, backward);
  const auto copied = copied_bytes(both, shared.problem.runtime);
  return block_time(both, [&](const BlockNode& n) { return setting.price(n, scale, copied); }, setting.lent()).forward.total.value;
}

}  // namespace moeplan
