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

/// Values that are columns of another: they share its memory and are less than it (pieces of splits, and what is written in place of them).
std::vector<bool> columns_of_others(const Block& block) {
  std::vector<bool> out(block.values.size(), false);
  for (std::size_t v = 0; v < out.size(); ++v) out[v] = block.values[v].bytes() < block.values[index(block.alias[v])].bytes();
  return out;
}

struct DenseCopies {
  const Block& block;
  std::vector<bool> columns;
  bool all_pieces = false;   ///< of `split`: they pass one after the other, so memory holds one of them

  [[nodiscard]] std::int64_t of(ValueId v, const Operand& o) const {
    if (v < 0) return 0;
    const Value& value = block.values[index(v)];
    const std::int64_t n = o.shape.elements();
    return (columns[index(v)] ? padded(stored_bytes(value.dtype, {n}).value) : 0) + (value.dtype != o.dtype ? padded(stored_bytes(o.dtype, {n}).value) : 0);
  }

  /// Values are made in the types of the contract but for gradients of weights, which are accumulated in another, and for what sums join (an indexer's
  /// input gradient in f32): where there is none of either and nothing is columns, the contract, which is most of the time that this takes, is not asked.
  [[nodiscard]] bool passes_through_nothing(const BlockNode& node, const OpCall& call) const {
    if (call.pass == Pass::backward && call.wants.weight_grad) return false;
    const bool sum = std::holds_alternative<op::Add>(call.op);
    const auto dense = [&](ValueId v) { return v < 0 || (!columns[index(v)] && (!sum || block.values[index(v)].dtype == DType::bf16)); };
    return std::all_of(node.operands.begin(), node.operands.end(), dense) && std::all_of(node.gradients.begin(), node.gradients.end(), dense);
  }

  Bytes operator()(const BlockNode& node) const {
    const OpCall* call = std::get_if<OpCall>(&node.call);
    if (!call) return {};
    if (!split_of(node) && passes_through_nothing(node, *call)) return {};
    const Operands contract = operands(call->op);
    std::int64_t sum = 0;
    if (split_of(node)) {
      if (call->pass == Pass::forward) return {};
      for (std::size_t o = 1; o < node.gradients.size(); ++o) {
        const ValueId g = node.gradients[o];
        if (g >= 0 && block.alias[index(g)] == block.alias[index(node.gradients.front())]) continue;   // it is there already
        const std::int64_t piece = stored_bytes(contract[o].dtype, contract[o].shape).value;
        const std::int64_t copied = piece + (g >= 0 && columns[index(g)] ? padded(piece) : 0);
        sum = all_pieces ? sum + copied : std::max(sum, copied);
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

CallScratch copied_bytes(const Block& block, const Runtime& runtime) {
  if (!runtime.own_kernels) return [](const BlockNode&) { return Bytes{}; };
  return DenseCopies{block, columns_of_others(block), true};
}

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
