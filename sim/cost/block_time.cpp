#include "sim/cost/block_time.hpp"

#include <algorithm>

namespace moeplan {
namespace {

PassTime pass_time(const Block& block, const std::vector<BlockNode>& nodes, const PriceCall& price) {
  PassTime out;
  std::array<double, kLanes> lane_free{};
  std::vector<double> ready(block.values.size(), 0);
  double end = 0, waited = 0;  // `waited`: the host's last wait; nothing is issued before it ends
  for (const BlockNode& node : nodes) {
    const Estimate e = price(node);
    double start = waited;
    for (const ValueId v : node.reads) start = std::max(start, ready[static_cast<std::size_t>(block.alias[static_cast<std::size_t>(v)])]);
    double& lane = lane_free[static_cast<std::size_t>(node.lane)];
    const bool wait = std::holds_alternative<HostWait>(node.call);
    if (!wait) start = std::max(start, lane);
    const double finish = start + e.median.value;
    if (wait) waited = finish;
    else lane = finish;
    for (const ValueId v : node.writes) {
      double& r = ready[static_cast<std::size_t>(block.alias[static_cast<std::size_t>(v)])];
      r = std::max(r, finish);
    }
    end = std::max(end, finish);
    if (node.lane == Lane::compute && !wait) (node.recompute ? out.recompute : out.compute) += e.median;
    out.basis[static_cast<std::size_t>(e.basis)] += e.median.value;
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

BlockTime block_time(const Block& block, const PriceCall& price) {
  return {pass_time(block, block.forward, price), pass_time(block, block.backward, price), pass_time(block, block.weight_backward, price)};
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
