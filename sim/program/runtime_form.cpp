/// What foreign runtimes hold beyond the catalogue's operators, as values of the block, so that every walk over
/// lifetimes sees them.

#include <algorithm>
#include <cmath>

#include "sim/program/program.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// The runtime's own bytes of one forward call: kept for its backward call, and there only while a call runs.
struct Beside {
  double kept = 0, forward = 0, backward = 0;
};

Beside beside(const Op& op, const BlockNode& node, const Block& block, const Runtime& runtime) {
  Beside out;
  if (const auto* c = std::get_if<op::CrossEntropy>(&op); c && runtime.whole_logits) {
    const double logits = static_cast<double>(c->tokens) * static_cast<double>(c->vocabulary);
    out.kept = logits * runtime.logit_kept;
    out.forward = out.backward = logits * std::max(0.0, runtime.logit_bytes - runtime.logit_kept);
    if (const auto dummy = runtime.kept.find("stand_in_gradient");
        dummy != runtime.kept.end() && c->training == Training::full)
      out.backward += static_cast<double>(c->vocabulary) * static_cast<double>(c->hidden) * dummy->second;
  }
  if (const auto* a = std::get_if<op::Attention>(&op); a && runtime.score_kept > 0)
    out.kept = static_cast<double>(a->tokens) * static_cast<double>(a->heads) *
               static_cast<double>(std::min(a->sequence_length, a->kv_tokens ? a->kv_tokens : a->tokens)) *
               runtime.score_kept;
  if (const auto it = runtime.kept.find(std::string(kind(op))); it != runtime.kept.end() && !node.writes.empty())
    out.kept += static_cast<double>(block.values[index(node.writes.front())].shape.elements()) * it->second;
  return out;
}

ValueId add_bytes(Block& block, const char* name, double bytes) {
  block.values.push_back({.name = name,
                          .shape = {static_cast<std::int64_t>(std::ceil(bytes))},
                          .dtype = DType::u8,
                          .differentiable = false});
  block.category.push_back(MemoryCategory::activations);
  block.alias.push_back(static_cast<ValueId>(block.values.size() - 1));
  return block.alias.back();
}

}  // namespace

void apply_runtime(Block& block, const Problem& problem, const Plan& plan) {
  const Runtime& runtime = problem.runtime;
  for (std::size_t w = 0; w < block.weight_grads.size(); ++w)
    if (block.weight_grads[w] >= 0 && accumulates_in_place(block.weights[w], problem, plan))
      block.values[index(block.weight_grads[w])].shape = Shape{0};
  // Checkpoints of a residual stream that is wider than bf16.
  if (const auto wider = runtime.kept.find("stream");
      wider != runtime.kept.end() && !block.inputs.empty() && !block.forward.empty() && !block.backward.empty()) {
    const ValueId x = block.inputs.front();
    if (block.values[index(x)].differentiable &&
        std::find(block.kept.begin(), block.kept.end(), x) != block.kept.end()) {
      const ValueId extra = add_bytes(block, "wider stream",
                                      wider->second * static_cast<double>(block.values[index(x)].shape.elements()));
      block.forward.front().writes.push_back(extra);
      block.backward.back().reads.push_back(extra);
      block.kept.push_back(extra);
    }
  }
  if (!runtime.whole_logits && runtime.score_kept <= 0 && runtime.kept.empty()) return;
  for (std::size_t i = 0; i < block.forward.size(); ++i) {
    const OpCall* call = std::get_if<OpCall>(&block.forward[i].call);
    if (!call) continue;
    const Op op = call->op;
    const Beside extra = beside(op, block.forward[i], block, runtime);
    if (extra.forward > 0)
      block.forward[i].writes.push_back(add_bytes(block, "beside the forward call", extra.forward));
    // The backward call of a forward call is the one that carries the same weights and follows its repetition, if it is
    // repeated.
    BlockNode *again = nullptr, *backward = nullptr;
    for (BlockNode& node : block.backward) {
      const OpCall* other = std::get_if<OpCall>(&node.call);
      if (!other || !(other->op == op) || node.weights != block.forward[i].weights) continue;
      if (other->pass == Pass::backward && !backward) backward = &node;
      if (node.recompute && !again) again = &node;
    }
    if (!backward) continue;
    if (extra.backward > 0) backward->writes.push_back(add_bytes(block, "beside the backward call", extra.backward));
    if (extra.kept <= 0) continue;
    const ValueId kept = add_bytes(block, "kept by the runtime", extra.kept);
    backward->reads.push_back(kept);
    if (again) {
      again->writes.push_back(kept);
    } else {
      block.forward[i].writes.push_back(kept);
      block.kept.push_back(kept);
    }
  }
}

}  // namespace moeplan
