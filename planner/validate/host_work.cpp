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

}  // namespace

Graphs graphs_of(const Row& row) {
  const std::string notes = row.notes.value_or("") + " | " + row.moe_notes.value_or("");
  if (contains(notes, "graph impl=none")) return Graphs::none;
  if (contains(notes, "graph") && contains(notes, "full_iteration")) return Graphs::whole;
  if (contains(notes, "full-iteration CUDA graph")) return Graphs::whole;
  return contains(notes, "graph") && contains(notes, "attn") ? Graphs::attention : Graphs::none;
}

double host_seconds(const Program& program, const Runtime& runtime, const HostWork& work) {
  if (work.graphs == Graphs::whole || runtime.host_call.value <= 0) return 0;
  double calls = 0;
  for (const Slot& s : program.slots) {
    const Block& block = program.blocks[static_cast<std::size_t>(s.block)];
    for (const auto* nodes : {&block.forward, &block.backward})
      for (const BlockNode& node : *nodes) calls += work.graphs == Graphs::none || is_expert_call(node);
  }
  const auto slower = runtime.traffic.find("narrow_host");
  const double of_call = work.narrow && slower != runtime.traffic.end() ? slower->second : 1;
  return calls * runtime.host_call.value * of_call;
}

}  // namespace moeplan::validation
