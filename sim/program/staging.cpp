#include "sim/program/staging.hpp"

#include <algorithm>

namespace moeplan {
bool is_merge(const Block& block, const BlockNode& node) {
  const CommCall* comm = std::get_if<CommCall>(&node.call);
  return comm && comm->group == Group::tensor && comm->collective == Collective::all_gather &&
         block.alias[static_cast<std::size_t>(node.reads.front())] == block.alias[static_cast<std::size_t>(node.writes.front())];
}

Bytes staged_rows(const Block& block, const Plan& plan, const HeldType& held) {
  // Where experts are placed, rows are put in the order of their slots before they leave; of pieces several are on their way, in both directions.
  const std::int64_t of_experts = plan.experts.chunks > 1 ? 4 : places_experts(plan) ? 2 : 1;
  Bytes most{};
  for (const auto* pass : {&block.forward, &block.backward})
    for (const BlockNode& n : *pass) {
      const CommCall* comm = std::get_if<CommCall>(&n.call);
      if (!comm) continue;
      if (is_merge(block, n)) most = std::max(most, comm->payload);
      const bool experts = comm->group == Group::expert;
      if (experts ? !n.operands.empty() : comm->group != Group::expert_tensor && comm->group != Group::context) continue;
      const auto bytes = [&](ValueId piece) {
        const Value& v = block.values[static_cast<std::size_t>(whole_of(block, piece))];
        return stored_bytes(held ? held(v.dtype) : v.dtype, v.shape);
      };
      Bytes read{};
      for (const ValueId v : n.reads) read += bytes(v);
      most = std::max(most, std::max(read, bytes(n.writes.front())) * (experts ? of_experts : 2));
    }
  return most;
}

Bytes staging(const Program& program, const Problem& problem, const Plan& plan, const HeldType& held) {
  const DType reduce = held ? held(problem.runtime.reduce) : problem.runtime.reduce;
  Bytes most{};
  for (const Block& b : program.blocks) most = std::max({most, staged_rows(b, plan, held), staged_gradients(b.weights, reduce, plan.parallelism)});
  return most;
}

}  // namespace moeplan
