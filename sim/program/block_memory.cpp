#include <fmt/format.h>

#include <algorithm>

#include "sim/program/block.hpp"
#include "sim/program/call_scratch.hpp"
#include "sim/program/staging.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }

std::string call_name(const BlockNode& node) {
  std::string name;
  if (const OpCall* op = std::get_if<OpCall>(&node.call)) name = fmt::format("{} {}", kind(op->op), op->pass == Pass::forward ? "forward" : "backward");
  else if (const CommCall* comm = std::get_if<CommCall>(&node.call)) name = name_of(comm->collective);
  else name = "host wait";
  return node.recompute ? name + " (recomputed)" : name;
}

/// Walks one pass. `live` holds what is there on entry; `stays` what must outlive the pass.
PassMemory walk(const Block& block, const std::vector<BlockNode>& nodes, std::vector<bool> live, const std::vector<bool>& stays, const CallScratch& scratch_of) {
  std::vector<std::size_t> last_use(block.values.size(), 0);
  std::vector<bool> used(block.values.size(), false);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const auto* list : {&nodes[i].reads, &nodes[i].writes})
      for (const ValueId v : *list) { last_use[index(block.alias[index(v)])] = i; used[index(block.alias[index(v)])] = true; }
  }
  std::array<std::int64_t, kMemoryCategories> now{};
  const auto add = [&](std::size_t v, std::int64_t sign) { now[static_cast<std::size_t>(block.category[v])] += sign * block.values[v].bytes().value; };
  for (std::size_t v = 0; v < live.size(); ++v) if (live[v]) add(v, 1);
  PassMemory out;
  std::int64_t best = -1;
  std::size_t at = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const ValueId w : nodes[i].writes) {
      const std::size_t v = index(block.alias[index(w)]);
      if (!live[v]) { live[v] = true; add(v, 1); }
    }
    const std::int64_t scratch = scratch_of(nodes[i]).value;
    std::int64_t sum = scratch;
    for (const auto b : now) sum += b;
    if (sum > best) {
      best = sum;
      for (std::size_t c = 0; c < kMemoryCategories; ++c) out.at_peak[c] = {now[c]};
      out.at_peak[static_cast<std::size_t>(MemoryCategory::workspace)] += Bytes{scratch};
      at = i;
    }
    const auto release = [&](ValueId id) {
      const std::size_t v = index(block.alias[index(id)]);
      if (live[v] && last_use[v] == i && !stays[v]) { live[v] = false; add(v, -1); }
    };
    for (const ValueId v : nodes[i].reads) release(v);
    for (const ValueId v : nodes[i].writes) release(v);
  }
  if (best >= 0) out.peak_at = call_name(nodes[at]);
  return out;
}

void mark(const Block& block, std::vector<bool>& flags, const std::vector<ValueId>& ids) {
  for (const ValueId id : ids) if (id >= 0) flags[index(block.alias[index(id)])] = true;
}

}  // namespace

BlockMemory block_memory(const Block& block) { return block_memory(block, Problem{}, Plan{}); }

BlockMemory block_memory(const Block& block, const Problem& problem, const Plan& plan) {
  const CallScratch scratch = call_scratch(block, problem.runtime);
  BlockMemory out;
  if (problem.runtime.staged) out.staged = staged_rows(block, problem, plan);
  std::vector<bool> none(block.values.size(), false), inputs = none, forward_stays = none, kept = none, carried = none;
  if (!block.inputs.empty()) mark(block, inputs, {block.inputs.front()});
  if (block.inputs.size() > 1) mark(block, carried, {block.inputs.begin() + 1, block.inputs.end()});
  mark(block, kept, block.kept);
  for (std::size_t v = 0; v < kept.size(); ++v) if (carried[v]) kept[v] = false;
  mark(block, forward_stays, block.outputs);
  for (std::size_t v = 0; v < kept.size(); ++v) if (kept[v]) forward_stays[v] = true;
  out.forward = walk(block, block.forward, inputs, forward_stays, scratch);
  for (std::size_t v = 0; v < kept.size(); ++v)
    if (kept[v]) out.kept[static_cast<std::size_t>(block.category[v])] += block.values[v].bytes();
  std::vector<bool> entry = kept, stays = none;
  mark(block, entry, block.output_grads);
  mark(block, stays, block.input_grads);
  mark(block, stays, block.weight_grads);
  std::vector<bool> put_off = none;
  mark(block, put_off, block.put_off);
  std::vector<bool> backward_stays = stays;
  for (std::size_t v = 0; v < put_off.size(); ++v) if (put_off[v]) backward_stays[v] = true;
  out.backward = walk(block, block.backward, entry, backward_stays, scratch);
  if (block.weight_backward.empty()) return out;
  for (std::size_t v = 0; v < put_off.size(); ++v)
    if (put_off[v]) out.put_off[static_cast<std::size_t>(block.category[v])] += block.values[v].bytes();
  out.weight_backward = walk(block, block.weight_backward, put_off, stays, scratch);
  return out;
}

PassMemory side_by_side_memory(const Block& both, const Block& forward, const Block& backward, const Runtime& runtime) {
  const auto shift = static_cast<ValueId>(forward.values.size());
  std::vector<bool> entry(both.values.size(), false), stays(both.values.size(), false);
  const auto put = [&](std::vector<bool>& flags, const std::vector<ValueId>& ids, ValueId by) {
    for (const ValueId id : ids) if (id >= 0) flags[index(both.alias[index(id + by)])] = true;
  };
  const auto carried = [&](const Block& b, ValueId by, std::vector<bool>& flags) {   // they belong to the slot that made them
    for (std::size_t i = 1; i < b.inputs.size(); ++i) flags[index(both.alias[index(b.inputs[i] + by)])] = false;
  };
  put(entry, backward.kept, shift);
  carried(backward, shift, entry);
  put(entry, backward.output_grads, shift);
  put(stays, forward.kept, 0);
  carried(forward, 0, stays);
  put(stays, forward.outputs, 0);
  if (!forward.inputs.empty()) put(entry, {forward.inputs.front()}, 0);
  put(stays, backward.input_grads, shift);
  put(stays, backward.weight_grads, shift);
  return walk(both, both.forward, entry, stays, call_scratch(both, runtime));
}

std::vector<std::string> verify(const Block& block) {
  std::vector<std::string> faults;
  const auto check = [&](const std::vector<BlockNode>& nodes, std::vector<bool> written, const char* pass) {
    for (const BlockNode& node : nodes) {
      for (const ValueId v : node.reads)
        if (!written[index(v)]) faults.push_back(fmt::format("{} {}: {} reads {} before it is written", block.name, pass, call_name(node), block.values[index(v)].name));
      for (const ValueId v : node.writes) {
        if (written[index(v)]) faults.push_back(fmt::format("{} {}: {} writes {} twice", block.name, pass, call_name(node), block.values[index(v)].name));
        written[index(v)] = true;
      }
      const OpCall* op = std::get_if<OpCall>(&node.call);
      if (!op || op->pass == Pass::backward || node.summary) continue;
      std::size_t next_in = 0, next_out = 0;
      for (const Operand& o : operands(op->op)) {
        if (o.role == Role::weight) continue;
        const bool in = o.role == Role::input || o.role == Role::index;
        const auto& list = in ? node.reads : node.writes;
        std::size_t& next = in ? next_in : next_out;
        if (next >= list.size()) { faults.push_back(fmt::format("{} {}: {} lacks its operand {}", block.name, pass, call_name(node), o.name)); break; }
        const Value& v = block.values[index(list[next])];
        std::int64_t elements = v.shape.elements();
        const auto whole = [&](std::size_t at) { return whole_of(block, list[at]); };
        for (const std::size_t first = next++; next < list.size() && whole(first) != list[first] && whole(next) == whole(first); ++next) elements += block.values[index(list[next])].shape.elements();
        if (elements != o.shape.elements())
          faults.push_back(fmt::format("{} {}: {} {} has {} elements, its value {} has {}", block.name, pass, call_name(node), o.name, o.shape.elements(), v.name, elements));
      }
    }
    return written;
  };
  std::vector<bool> start(block.values.size(), false);
  for (const ValueId v : block.inputs) start[index(v)] = true;
  const std::vector<bool> after = check(block.forward, start, "forward");
  for (const ValueId v : block.outputs) if (!after[index(v)]) faults.push_back(fmt::format("{}: output {} is never written", block.name, block.values[index(v)].name));
  std::vector<bool> entry(block.values.size(), false);
  for (const ValueId v : block.kept) {
    if (!after[index(v)]) faults.push_back(fmt::format("{}: kept {} is never written", block.name, block.values[index(v)].name));
    entry[index(v)] = true;
  }
  for (const ValueId v : block.output_grads) if (v >= 0) entry[index(v)] = true;
  std::vector<bool> end = check(block.backward, entry, "backward");
  for (const ValueId v : block.put_off) if (!end[index(v)]) faults.push_back(fmt::format("{}: {} is put off, but never written", block.name, block.values[index(v)].name));
  end = check(block.weight_backward, end, "weight backward");
  for (const auto* list : {&block.input_grads, &block.weight_grads})
    for (const ValueId v : *list) if (v >= 0 && !end[index(v)]) faults.push_back(fmt::format("{}: gradient {} is never written", block.name, block.values[index(v)].name));
  return faults;
}

}  // namespace moeplan
