#include "sim/program/staging.hpp"

#include <algorithm>

namespace moeplan {
namespace {

constexpr std::int64_t kWord = 4;   ///< of a choice, a place or a weight

Bytes part(std::int64_t bytes) { return {(bytes + 255) / 256 * 256}; }

}  // namespace

bool is_merge(const Block& block, const BlockNode& node) {
  const CommCall* comm = std::get_if<CommCall>(&node.call);
  return comm && comm->group == Group::tensor && comm->collective == Collective::all_gather &&
         block.alias[static_cast<std::size_t>(node.reads.front())] == block.alias[static_cast<std::size_t>(node.writes.front())];
}

int ranks_of_a_node(const Problem& problem, const Plan& plan) {
  const Parallelism& p = plan.parallelism;
  const auto devices = static_cast<int>(problem.cluster.devices_per_node);
  if (plan.experts.route == DispatchRoute::direct || devices < p.etp || devices % p.etp != 0) return 0;
  const int ranks = devices / p.etp;
  return ranks > 1 && ranks < p.ep && p.ep % ranks == 0 ? ranks : 0;
}

std::vector<std::int64_t> once_hops(const Problem& problem, const Plan& plan) {
  const int ep = plan.parallelism.ep, node = ranks_of_a_node(problem, plan);
  if (!problem.runtime.deduplicated_dispatch || ep == 1 || plan.experts.chunks > 1) return {};
  return node > 0 ? std::vector<std::int64_t>{ep / node, node} : std::vector<std::int64_t>{ep};
}

OnceBytes once_bytes(const Block& block, const BlockNode& dispatch, const Problem& problem, const Plan& plan, const HeldType& held) {
  const CommCall& comm = std::get<CommCall>(dispatch.call);
  const Value& arriving = block.values[static_cast<std::size_t>(dispatch.writes.front())];
  const std::int64_t width = arriving.shape[arriving.shape.rank - 1], rows = arriving.shape.elements() / width,
                     row = stored_bytes(held ? held(arriving.dtype) : arriving.dtype, {width}).value,
                     top_k = comm.rows / std::max<std::int64_t>(1, comm.tokens), slots = (comm.experts + plan.experts.replicas) / plan.parallelism.ep;
  const std::vector<std::int64_t> hops = once_hops(problem, plan);
  OnceBytes out{.rows = rows};
  std::int64_t here = comm.tokens;
  for (std::size_t h = 0; h < hops.size(); ++h) {
    // Each token that comes has a copy on this rank, or on another one of its node.
    const std::int64_t sent = here * std::min(top_k, hops[h]), received = std::min(here * hops[h], h + 1 < hops.size() ? hops[h + 1] * rows : rows);
    out.there = std::max(out.there, part(sent * row));
    out.back = std::max(out.back, part(received * row));
    out.words = std::max(out.words, part((sent + received) * 2 * top_k * kWord));
    out.ways += part(sent * kWord) * 2;
    here = received;
  }
  out.ways += part(here * std::min(top_k, slots) * kWord) * 3;
  return out;
}

Staged staged_rows(const Block& block, const Problem& problem, const Plan& plan, const HeldType& held) {
  // Where experts are placed, rows are put in the order of their slots before they leave; of pieces several are on their way, in both directions.
  const std::int64_t of_experts = plan.experts.chunks > 1 ? 4 : places_experts(plan) ? 2 : 1;
  const bool once = !once_hops(problem, plan).empty();
  Staged most;
  for (const auto* pass : {&block.forward, &block.backward})
    for (const BlockNode& n : *pass) {
      const CommCall* comm = std::get_if<CommCall>(&n.call);
      if (!comm) continue;
      if (is_merge(block, n)) most.buffer = std::max(most.buffer, comm->payload);
      const bool experts = comm->group == Group::expert;
      if (experts && once) {   // the others of the block go the same ways
        if (pass != &block.forward || comm->collective != Collective::dispatch) continue;
        const OnceBytes bytes = once_bytes(block, n, problem, plan, held);
        most.buffer = std::max(most.buffer, bytes.buffer());
        most.ways += bytes.ways;
        continue;
      }
      if (!experts && comm->group != Group::expert_tensor && comm->group != Group::context) continue;
      const auto bytes = [&](ValueId piece) {
        const Value& v = block.values[static_cast<std::size_t>(whole_of(block, piece))];
        return stored_bytes(held ? held(v.dtype) : v.dtype, v.shape);
      };
      Bytes read{};
      for (const ValueId v : n.reads) read += bytes(v);
      most.buffer = std::max(most.buffer, std::max(read, bytes(n.writes.front())) * (experts ? of_experts : 2));
    }
  return most;
}

Staged staging(const Program& program, const Problem& problem, const Plan& plan, const HeldType& held) {
  const DType reduce = held ? held(problem.runtime.reduce) : problem.runtime.reduce;
  std::vector<Staged> of_block;
  for (const Block& b : program.blocks) of_block.push_back(staged_rows(b, problem, plan, held));
  Staged out;
  for (const Staged& b : of_block) out.buffer = std::max(out.buffer, b.buffer);
  for (const Block& b : program.blocks) out.buffer = std::max(out.buffer, staged_gradients(b.weights, reduce, plan.parallelism));
  for (const Slot& s : program.slots) out.ways += of_block[static_cast<std::size_t>(s.block)].ways * kept_ways(plan);
  return out;
}

}  // namespace moeplan
