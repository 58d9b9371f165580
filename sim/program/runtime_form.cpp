/// What foreign runtimes hold beyond the catalogue's operators, as values of the block, so that every walk over
/// lifetimes sees them.

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/program/loss_values.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// The runtime's own bytes of one forward call: kept for its backward call, and there only while a call runs.
struct Beside {
  double kept = 0, forward = 0, backward = 0;
};

Beside beside(const Op& op, const BlockNode& node, const Block& block, const Runtime& runtime, Recompute recompute) {
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
  // Dropout before a pair of its own: the mask and what it leaves, beside the input that the base product keeps.
  if (const auto* l = std::get_if<op::Linear>(&op); l && l->lora_rank > 0 && !runtime.fused_lora)
    if (const auto it = runtime.kept.find("dropped_input"); it != runtime.kept.end())
      out.kept += static_cast<double>(l->tokens) * static_cast<double>(l->in) * it->second;
  // Eager scores, as torchtitan's layers multiply them in fp32: the rows' wide copy is kept instead of them (2 bytes
  // more an element; checkpointed layers make it again); forward its product and that in bf16 are there with it and the
  // rows (8 more), backward the wide gradient, its product with the scores and, for the scores' own gradient, with the
  // rows (10 more).
  if (const auto* c = std::get_if<op::Combine>(&op); c && runtime.kept.contains("scored_rows")) {
    const double elements =
        static_cast<double>(c->tokens) * static_cast<double>(c->top_k) * static_cast<double>(c->width);
    (recompute == Recompute::full ? out.backward : out.kept) += 2 * elements;
    out.forward += 8 * elements, out.backward += 10 * elements;
  }
  if (const auto it = runtime.kept.find(std::string(kind(op))); it != runtime.kept.end() && !node.writes.empty())
    out.kept += static_cast<double>(block.values[index(node.writes.front())].shape.elements()) * it->second;
  return out;
}

ValueId add_bytes(Block& block, std::string_view name, double bytes) {
  block.values.push_back({.name = std::string(name),
                          .shape = {static_cast<std::int64_t>(std::ceil(bytes))},
                          .dtype = DType::u8,
                          .differentiable = false});
  block.category.push_back(MemoryCategory::activations);
  block.alias.push_back(static_cast<ValueId>(block.values.size() - 1));
  return block.alias.back();
}

ValueId root_of(const Block& block, ValueId v) { return v < 0 ? -1 : block.alias[index(v)]; }

bool is_linear(const BlockNode& node) {
  const OpCall* call = std::get_if<OpCall>(&node.call);
  return call && (std::holds_alternative<op::Linear>(call->op) || std::holds_alternative<op::GroupedLinear>(call->op));
}

bool is_kept(const Block& block, ValueId root) {
  return std::any_of(block.kept.begin(), block.kept.end(), [&](ValueId v) { return root_of(block, v) == root; });
}

void forget(const Block& block, std::vector<ValueId>& values, ValueId root) {
  std::erase_if(values, [&](ValueId v) { return root_of(block, v) == root; });
}

/// Routing weights that multiply the activations before the second product leave its result without a reader in the
/// backward pass (Megatron-Core's grouped experts since 0.12).
void weigh_activations(Block& block) {
  for (BlockNode& node : block.backward) {
    const OpCall* call = std::get_if<OpCall>(&node.call);
    if (!call || !std::holds_alternative<op::Combine>(call->op) || call->pass != Pass::backward ||
        node.operands.empty())
      continue;
    const ValueId rows = root_of(block, node.operands.front());
    if (rows < 0) continue;
    forget(block, node.reads, rows);
    node.operands.front() = -1;
    const bool read = std::any_of(block.backward.begin(), block.backward.end(), [&](const BlockNode& n) {
      return std::any_of(n.reads.begin(), n.reads.end(), [&](ValueId v) { return root_of(block, v) == rows; });
    });
    if (!read) forget(block, block.kept, rows);
  }
}

/// A product in a narrow type keeps its input in that type, with its block scales, instead of the bf16 that came in;
/// where something else reads the bf16 in the backward pass, both are kept.
void keep_narrow_inputs(Block& block, double bytes_per_element) {
  std::map<ValueId, ValueId> narrow;  // root of an input -> its narrow copy
  for (BlockNode& node : block.backward) {
    if (!is_linear(node) || std::get<OpCall>(node.call).pass != Pass::backward || node.operands.empty()) continue;
    const ValueId wide = root_of(block, node.operands.front());
    if (wide < 0 || !is_kept(block, wide) || root_of(block, block.inputs.front()) == wide) continue;
    auto [copy, fresh] = narrow.try_emplace(wide, -1);
    if (fresh) {
      const double elements = static_cast<double>(block.values[index(node.operands.front())].shape.elements());
      copy->second = add_bytes(block, "input in the type of the product", elements * bytes_per_element);
      for (BlockNode& made : block.forward) {
        if (!is_linear(made) || made.operands.empty() || root_of(block, made.operands.front()) != wide) continue;
        made.writes.push_back(copy->second);
        break;
      }
      block.kept.push_back(copy->second);
    }
    forget(block, node.reads, wide);
    node.reads.push_back(copy->second);
    node.operands.front() = copy->second;
  }
  for (const auto& [wide, copy] : narrow) {
    const ValueId root = wide;
    const bool read = std::any_of(block.backward.begin(), block.backward.end(), [&](const BlockNode& n) {
      return std::any_of(n.reads.begin(), n.reads.end(), [&](ValueId v) { return root_of(block, v) == root; });
    });
    if (!read) forget(block, block.kept, root);
  }
}

/// Bytes an element of a narrow type takes with its scales: one byte for 32 elements (MX), one for 16 (NVFP4).
double narrow_bytes(DType type) { return type == DType::nvfp4 ? 0.5 + 1.0 / 16 : 1 + 1.0 / 32; }

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
  if (runtime.kept.contains("weighted_activation")) weigh_activations(block);
  if (runtime.kept.contains("narrow_input") && runtime.compute != DType::bf16 && !block.inputs.empty())
    keep_narrow_inputs(block, narrow_bytes(runtime.compute));
  for (std::size_t i = 0; i < block.forward.size(); ++i) {
    const OpCall* call = std::get_if<OpCall>(&block.forward[i].call);
    if (!call) continue;
    const Op op = call->op;
    const Beside extra = beside(op, block.forward[i], block, runtime, plan.recompute);
    if (extra.forward > 0) block.forward[i].writes.push_back(add_bytes(block, kBesideForward, extra.forward));
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
    if (extra.backward > 0) backward->writes.push_back(add_bytes(block, kBesideBackward, extra.backward));
    if (extra.kept <= 0) continue;
    const ValueId kept = add_bytes(block, kKeptByRuntime, extra.kept);
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
