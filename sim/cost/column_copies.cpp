#include "sim/cost/column_copies.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

const op::Split* split_of(const BlockNode& node) {
  const OpCall* call = std::get_if<OpCall>(&node.call);
  return call ? std::get_if<op::Split>(&call->op) : nullptr;
}

/// Pieces of splits, and gradients that lie in the gradient of the whole.
std::vector<bool> columns_of_others(const Block& block) {
  std::vector<bool> out(block.values.size(), false);
  for (const auto* pass : {&block.forward, &block.backward})
    for (const BlockNode& node : *pass) {
      if (!split_of(node)) continue;
      if (std::get<OpCall>(node.call).pass == Pass::forward) {
        for (const ValueId piece : node.writes) out[index(piece)] = true;
        continue;
      }
      for (std::size_t o = 1; o < node.gradients.size(); ++o)
        if (const ValueId g = node.gradients[o]; g >= 0 && block.alias[index(g)] == node.writes.front()) out[index(g)] = true;
    }
  return out;
}

}  // namespace

std::function<Bytes(const BlockNode&)> column_copies(const Block& block) {
  return [&block, columns = columns_of_others(block)](const BlockNode& node) -> Bytes {
    Bytes sum{};
    const OpCall* call = std::get_if<OpCall>(&node.call);
    if (!call) return sum;
    // What a split's backward pass puts into its place: pieces that are not there already.
    const bool split = split_of(node) != nullptr;
    if (split && call->pass == Pass::forward) return sum;
    for (std::size_t o = split ? 1 : 0; o < std::max(node.operands.size(), node.gradients.size()); ++o)
      for (const auto* list : {&node.operands, &node.gradients}) {
        const ValueId v = o < list->size() ? (*list)[o] : -1;
        if (v < 0 || (split && (list == &node.operands || columns[index(v)]))) continue;
        if (split || columns[index(v)]) sum += block.values[index(v)].bytes();
      }
    return sum;
  };
}

PriceCall with_column_copies(const Block& block, const Prices& prices, const PriceCall& price) {
  return [&prices, &price, copied = column_copies(block)](const BlockNode& node) {
    Estimate e = price(node);
    const Seconds copies = prices.copies(copied(node));
    return Estimate{e.median + copies, e.low + copies, e.high + copies, e.basis};
  };
}

}  // namespace moeplan
