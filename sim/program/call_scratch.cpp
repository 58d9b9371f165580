#include "sim/program/call_scratch.hpp"

#include <algorithm>

#include "kernels/device_scratch.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

std::int64_t padded(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

const op::Split* split_of(const BlockNode& node) {
  const OpCall* call = std::get_if<OpCall>(&node.call);
  return call ? std::get_if<op::Split>(&call->op) : nullptr;
}

/// Values that are columns of another: the pieces of splits, and gradients that lie in the gradient of the whole.
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

struct DenseCopies {
  const Block& block;
  std::vector<bool> columns;

  [[nodiscard]] std::int64_t of(ValueId v, const Operand& o) const {
    if (v < 0) return 0;
    const Value& value = block.values[index(v)];
    const std::int64_t n = o.shape.elements();
    return (columns[index(v)] ? padded(stored_bytes(value.dtype, {n}).value) : 0) + (value.dtype != o.dtype ? padded(stored_bytes(o.dtype, {n}).value) : 0);
  }

  Bytes operator()(const BlockNode& node) const {
    const OpCall* call = std::get_if<OpCall>(&node.call);
    if (!call) return {};
    const Operands contract = operands(call->op);
    std::int64_t sum = 0;
    if (split_of(node)) {
      if (call->pass == Pass::forward) return {};
      for (std::size_t o = 1; o < node.gradients.size(); ++o) {
        const ValueId g = node.gradients[o];
        if (g >= 0 && block.alias[index(g)] == block.alias[index(node.gradients.front())]) continue;   // it is there already
        const std::int64_t piece = stored_bytes(contract[o].dtype, contract[o].shape).value;
        sum = std::max(sum, piece + (g >= 0 && columns[index(g)] ? padded(piece) : 0));
      }
      return {sum};
    }
    for (std::size_t o = 0; o < contract.size(); ++o) {
      if (o < node.operands.size()) sum += of(node.operands[o], contract[o]);
      if (o < node.gradients.size()) sum += of(node.gradients[o], contract[o]);
    }
    return {sum};
  }
};

}  // namespace

CallScratch dense_copies(const Block& block) { return DenseCopies{block, columns_of_others(block)}; }

CallScratch call_scratch(const Block& block, const Runtime& runtime) {
  if (runtime.own_kernels)
    return [copies = dense_copies(block)](const BlockNode& node) -> Bytes {
      const OpCall* call = std::get_if<OpCall>(&node.call);
      if (!call) return {};
      return copies(node) + device_workspace(call->op, call->pass, call->wants);
    };
  return [](const BlockNode& node) -> Bytes {
    const OpCall* call = std::get_if<OpCall>(&node.call);
    return call ? workspace(call->op, call->pass, call->wants) : Bytes{};
  };
}

}  // namespace moeplan
