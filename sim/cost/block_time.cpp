#include "sim/cost/block_time.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include "sim/cost/collectives.hpp"

namespace moeplan {
namespace {

/// A call that holds multiprocessors, seconds.
struct Holder {
  double start, end, share;
  bool operator==(const Holder&) const = default;
};

/// When a compute call that takes `seconds` alone ends beside them.
double end_beside(double start, double seconds, std::span<const Holder> holders) {
  double now = start, left = seconds;
  for (;;) {
    double taken = 0, next = std::numeric_limits<double>::infinity();
    for (const Holder& h : holders) {
      if (h.start <= now && now < h.end) taken += h.share, next = std::min(next, h.end);
      else if (h.start > now) next = std::min(next, h.start);
    }
    const double speed = 1 - std::min(taken, kMostLent), end = now + left / speed;
    if (end <= next) return end;
    left -= (next - now) * speed;
    now = next;
  }
}

/// Lays priced calls on their lanes. `holders`: calls that hold multiprocessors; returns those of this round in list order.
double lay_out(const Block& block, const std::vector<BlockNode>& nodes, std::span<const double> seconds, std::span<const double> shares, std::span<const Holder> holders, std::vector<Holder>& found) {
  std::array<double, kLanes> lane_free{};
  std::vector<double> ready(block.values.size(), 0);
  double end = 0, waited = 0;  // `waited`: the host's last wait; nothing is issued before it ends
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const BlockNode& node = nodes[i];
    double start = waited;
    for (const ValueId v : node.reads) start = std::max(start, ready[static_cast<std::size_t>(block.alias[static_cast<std::size_t>(v)])]);
    double& lane = lane_free[static_cast<std::size_t>(node.lane)];
    const bool wait = std::holds_alternative<HostWait>(node.call);
    if (!wait) start = std::max(start, lane);
    const bool computes = std::holds_alternative<OpCall>(node.call);
    const double finish = computes && !holders.empty() ? end_beside(start, seconds[i], holders) : start + seconds[i];
    if (wait) waited = finish;
    else lane = finish;
    if (!shares.empty() && shares[i] > 0) found.push_back({start, finish, shares[i]});
    for (const ValueId v : node.writes) {
      double& r = ready[static_cast<std::size_t>(block.alias[static_cast<std::size_t>(v)])];
      r = std::max(r, finish);
    }
    end = std::max(end, finish);
  }
  return end;
}

PassTime pass_time(const Block& block, const std::vector<BlockNode>& nodes, const PriceCall& price, const LentTo& lent) {
  PassTime out;
  std::vector<double> seconds, shares;
  for (const BlockNode& node : nodes) {
    const Estimate e = price(node);
    seconds.push_back(e.median.value);
    if (node.lane == Lane::compute && !std::holds_alternative<HostWait>(node.call)) (node.recompute ? out.recompute : out.compute) += e.median;
    out.basis[static_cast<std::size_t>(e.basis)] += e.median.value;
    const CommCall* call = std::get_if<CommCall>(&node.call);
    if (lent) shares.push_back(call && node.lane != Lane::compute && e.median.value > 0 ? lent(*call) : 0);
  }
  // What is beside a call is known once it is laid out: each round is right up to the first call that moves, so that as many rounds as there
  // are such calls settle it.
  std::vector<Holder> before, now;
  double end = lay_out(block, nodes, seconds, shares, {}, now);
  while (now != before) {
    before = std::move(now);
    now.clear();
    end = lay_out(block, nodes, seconds, shares, before, now);
  }
  out.total = {end};
  out.exposed = {std::max(0.0, end - out.compute.value - out.recompute.value)};
  return out;
}

bool is_attention(std::string_view kind) { return kind == "attention"; }

/// Whether an operator's work is model work by the field's convention: products with weights, attention and the recurrences that stand
/// in its place. Norms, gates, sums and moves of rows are not counted (1.7 % on Qwen3-30B-A3B);
/// cross_entropy is, for the head's product in it.
bool is_product(std::string_view kind) {
  static constexpr std::string_view kinds[] = {"linear",     "head_linear",     "grouped_linear",       "router", "attention",       "indexer", "sparse_attention",
                                               "compress",   "compressed_attention", "kda",             "gated_delta_net", "mamba1", "mamba2",
                                               "lightning_attention", "short_conv",     "cross_entropy"};
  return std::ranges::find(kinds, kind) != std::end(kinds);
}

}  // namespace

BlockTime block_time(const Block& block, const PriceCall& price, const LentTo& lent) {
  return {pass_time(block, block.forward, price, lent), pass_time(block, block.backward, price, lent), pass_time(block, block.weight_backward, price, lent)};
}

Flops model_flops(const Block& block, bool full_attention) {
  double sum = 0;
  for (const auto* nodes : {&block.forward, &block.backward, &block.weight_backward}) {
    for (const BlockNode& node : *nodes) {
      const OpCall* call = std::get_if<OpCall>(&node.call);
      if (!call || node.recompute || !is_product(kind(call->op))) continue;
      double f = flops(call->op, call->pass, call->wants).value;
      if (is_attention(kind(call->op))) {
        // A flash backward repeats the scores; the model does not: two forward's worth.
        if (call->pass == Pass::backward) f = 2 * flops(call->op, Pass::forward, {}).value;
        if (full_attention) f *= 2;
      }
      // The chunked loss makes its logits again in the backward.
      if (const double forward = flops(call->op, Pass::forward, {}).value; kind(call->op) == "cross_entropy" && call->pass == Pass::backward && f > forward) f -= forward;
      sum += f;
    }
  }
  return {sum};
}

}  // namespace moeplan
