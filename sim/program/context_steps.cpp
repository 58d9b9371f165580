#include "sim/program/context_steps.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace moeplan {
namespace {

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

constexpr Lane kLane = Lane::expert_communication;

/// The call of a step: the own part is causal, every other part half as many pairs as queries x keys.
Op step_of(const Op& op, std::int64_t step) {
  op::Attention call = std::get<op::Attention>(op);
  if (step > 0) {
    call.causal = false;
    call.sequence_length = std::max<std::int64_t>(1, call.sequence_length / 2);
  }
  return call;
}

Bytes bytes_of(const Block& block, const std::vector<ValueId>& values) {
  Bytes sum{};
  for (const ValueId v : values) sum += block.values[index(v)].bytes();
  return sum;
}

/// To the next rank: `values`, received as new ones (or as `into`).
std::vector<ValueId> pass_on(Block& block, const std::vector<ValueId>& values, const std::string& suffix, bool recompute, std::vector<BlockNode>& to, std::vector<ValueId> into = {}) {
  if (into.empty())
    for (const ValueId v : values) into.push_back(add_like(block, v, block.values[index(v)].name + suffix));
  to.push_back({.call = CommCall{.collective = Collective::send_receive, .group = Group::context, .payload = bytes_of(block, values)}, .lane = kLane, .reads = values, .writes = into, .weights = {},
                .recompute = recompute});
  return into;
}

}  // namespace

ValueId add_like(Block& block, ValueId like, const std::string& name, ValueId with) {
  Value v = block.values[index(like)];
  v.name = name;
  const MemoryCategory category = block.category[index(like)];
  block.values.push_back(std::move(v));
  block.category.push_back(category);
  const auto id = static_cast<ValueId>(block.values.size() - 1);
  block.alias.push_back(with < 0 ? id : block.alias[index(with)]);
  return id;
}

void ring_forward(Block& block, const GraphNode& node, std::int64_t ranks, const std::vector<ValueId>& reads, const std::vector<ValueId>& writes, bool recompute,
                  std::vector<BlockNode>& to) {
  std::vector<ValueId> parts(reads.begin() + 1, reads.end()), before;   // keys and values of this step; sums so far
  for (std::int64_t step = 0; step < ranks; ++step) {
    std::vector<ValueId> next;
    if (step + 1 < ranks) next = pass_on(block, parts, step == 0 ? ".passed" : "", recompute, to);
    BlockNode run{.call = OpCall{step_of(std::get<Op>(node.call), step), Pass::forward, {}}, .reads = {reads.front()}, .writes = {}, .weights = node.weights, .recompute = recompute};
    run.reads.insert(run.reads.end(), parts.begin(), parts.end());
    run.reads.insert(run.reads.end(), before.begin(), before.end());
    for (const ValueId w : writes) run.writes.push_back(step + 1 == ranks ? w : add_like(block, w, block.values[index(w)].name + fmt::format(".step{}", step), w));
    before = run.writes;
    to.push_back(std::move(run));
    parts = std::move(next);
  }
}

void ring_backward(Block& block, const GraphNode& node, std::int64_t ranks, Wants wants, const std::vector<ValueId>& reads, const std::vector<ValueId>& gradients,
                   const std::vector<ValueId>& weight_gradients, std::vector<BlockNode>& to) {
  const std::size_t count = node.inputs.size() - 1;
  std::vector<ValueId> parts(reads.begin() + 1, reads.begin() + 1 + static_cast<std::ptrdiff_t>(count)), travelling;   // gradient sums on their way
  const std::vector<ValueId> rest(reads.begin() + 1 + static_cast<std::ptrdiff_t>(count), reads.end());
  std::vector<ValueId> wanted;   // gradients of keys and values that are wanted
  for (std::size_t i = 1; i < gradients.size(); ++i)
    if (gradients[i] >= 0) wanted.push_back(gradients[i]);
  ValueId dq = -1;
  for (std::int64_t step = 0; step < ranks; ++step) {
    const bool last = step + 1 == ranks;
    std::vector<ValueId> next;
    if (!last) next = pass_on(block, parts, step == 0 ? ".passed" : "", true, to);
    BlockNode run{.call = OpCall{step_of(std::get<Op>(node.call), step), Pass::backward, wants}, .reads = {reads.front()}, .writes = {}, .weights = node.weights};
    run.reads.insert(run.reads.end(), parts.begin(), parts.end());
    run.reads.insert(run.reads.end(), rest.begin(), rest.end());
    if (dq >= 0) run.reads.push_back(dq);
    if (gradients.front() >= 0) {
      dq = last ? gradients.front() : add_like(block, gradients.front(), block.values[index(gradients.front())].name + fmt::format(".step{}", step), gradients.front());
      run.writes.push_back(dq);
    }
    std::vector<ValueId> made;
    for (const ValueId g : wanted) made.push_back(add_like(block, g, block.values[index(g)].name + ".part"));
    run.writes.insert(run.writes.end(), made.begin(), made.end());
    if (last) run.writes.insert(run.writes.end(), weight_gradients.begin(), weight_gradients.end());
    to.push_back(std::move(run));
    for (std::size_t i = 0; i < made.size() && step > 0; ++i) {
      const Shape& s = block.values[index(made[i])].shape;
      const std::int64_t width = std::max<std::int64_t>(1, s[s.rank - 1]);
      op::Add add{};
      add.tokens = s.elements() / width;
      add.hidden = width;
      const ValueId sum = add_like(block, made[i], block.values[index(made[i])].name + ".sum", made[i]);
      to.push_back({.call = OpCall{add, Pass::forward, {}}, .reads = {travelling[i], made[i]}, .writes = {sum}, .weights = {}});
      made[i] = sum;
    }
    if (!made.empty()) travelling = pass_on(block, made, ".passed", false, to, last ? wanted : std::vector<ValueId>{});
    parts = std::move(next);
  }
}

ValueId state_backward(Block& block, const GraphNode& node, const std::vector<ValueId>& reads, std::vector<BlockNode>& to) {
  // The scan from behind is the mirror image: output gradients in the place of values. It is the same call on the same shapes.
  const ValueId before = node.also.front();
  Value maps = block.values[index(before)];
  maps.name += ".maps from behind";
  maps.shape = {maps.shape[0], node.exchange.tokens};
  block.values.push_back(std::move(maps));
  block.category.push_back(block.category[index(before)]);
  block.alias.push_back(static_cast<ValueId>(block.values.size() - 1));
  const ValueId made = block.alias.back();
  to.push_back({.call = OpCall{std::get<Op>(node.call), Pass::forward, {}}, .reads = reads, .writes = {made}, .weights = node.weights, .summary = true});
  const ValueId behind = add_like(block, before, block.values[index(before)].name + ".from behind");
  to.push_back({.call = node.exchange, .lane = kLane, .reads = {made}, .writes = {behind}, .weights = {}});
  return behind;
}

std::vector<ValueId> halo_backward(Block& block, const GraphNode& node, const std::vector<ValueId>& halo_gradients, const std::vector<ValueId>& gradients, std::vector<BlockNode>& to) {
  BlockNode back{.call = node.exchange, .lane = kLane, .reads = halo_gradients, .writes = {}, .weights = {}};
  back.reads.insert(back.reads.end(), gradients.begin(), gradients.end());
  for (const ValueId g : gradients) back.writes.push_back(add_like(block, g, block.values[index(g)].name + ".complete", g));
  std::vector<ValueId> out = back.writes;
  to.push_back(std::move(back));
  return out;
}

}  // namespace moeplan
