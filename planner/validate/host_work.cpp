#include "planner/validate/host_work.hpp"

#include "planner/validate/words.hpp"

namespace moeplan::validation {
namespace {

/// Issued one by one although attention and router are in graphs: what follows the read-back of the counts.
bool is_expert_call(const BlockNode& node) {
  if (const auto* comm = std::get_if<CommCall>(&node.call)) return comm->experts > 0;
  const auto* call = std::get_if<OpCall>(&node.call);
  return !call || std::holds_alternative<op::GroupedLinear>(call->op) ||
         std::holds_alternative<op::Permute>(call->op) || std::holds_alternative<op::Combine>(call->op);
}

/// Calls that a loop over experts makes of one.
double experts_of(const BlockNode& node, double otherwise = 1) {
  const auto* call = std::get_if<OpCall>(&node.call);
  const auto* product = call ? std::get_if<op::GroupedLinear>(&call->op) : nullptr;
  return product ? static_cast<double>(product->experts) : otherwise;
}

}  // namespace

Graphs graphs_of(const Row& row) {
  const std::string notes = row.notes.value_or("") + " | " + row.moe_notes.value_or("");
  if (contains(notes, "graph impl=none")) return Graphs::none;
  if (contains(notes, "graph") && contains(notes, "full_iteration")) return Graphs::whole;
  if (contains(notes, "full-iteration CUDA graph")) return Graphs::whole;
  return contains(notes, "graph") && contains(notes, "attn") ? Graphs::attention : Graphs::none;
}

HostSeconds host_seconds(const Program& program, const Runtime& runtime, const HostWork& work) {
  if (work.graphs == Graphs::whole || runtime.host_call.value <= 0) return {};
  const auto factor = [&](const char* name) {
    const auto it = runtime.traffic.find(name);
    return it == runtime.traffic.end() ? 1.0 : it->second;
  };
  const double of_call = runtime.host_call.value;
  const double of_expert_call = of_call * factor("expert_host");
  const double one_by_one = runtime.traffic.contains("narrow_expert") ? factor("narrow_expert") : 0;
  const bool looped = runtime.traffic.contains("looped_experts");
  HostSeconds out;
  for (const Slot& s : program.slots) {
    const Block& block = program.blocks[static_cast<std::size_t>(s.block)];
    for (const bool forward : {true, false})
      for (const BlockNode& node : forward ? block.forward : block.backward) {
        const bool expert = is_expert_call(node);
        if (!expert && work.graphs != Graphs::none) continue;
        double each = (expert ? of_expert_call : of_call) * (looped ? experts_of(node) : 1);
        if (work.narrow) each += of_call * one_by_one * experts_of(node, 0);
        out.all += each;
        if (expert && forward && work.reads_counts) out.behind_counts += each;
      }
  }
  return out;
}

}  // namespace moeplan::validation
