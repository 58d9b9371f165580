#include "sim/memory/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/memory/communicators.hpp"
#include "sim/program/call_scratch.hpp"
#include "sim/program/staging.hpp"

namespace moeplan {
namespace {

using Categories = std::array<Bytes, kMemoryCategories>;

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

void add(Categories& to, const Categories& what, std::int64_t times = 1) {
  for (std::size_t c = 0; c < kMemoryCategories; ++c) to[c] += what[c] * times;
}
void add(Categories& to, MemoryCategory c, Bytes b) { to[static_cast<std::size_t>(c)] += b; }

Bytes sum(const Categories& c) {
  Bytes s{};
  for (const Bytes b : c) s += b;
  return s;
}

/// The largest moment seen; of equal ones the first.
struct Peak {
  Categories at{};
  std::int64_t bytes = -1;
  const char* pass = "";
  std::size_t slot = 0;
  const PassMemory* memory = nullptr;

  void consider(const Categories& now, const char* which, std::size_t where, const PassMemory& m) {
    const std::int64_t total = sum(now).value;
    if (total <= bytes) return;
    *this = {now, total, which, where, &m};
  }
  [[nodiscard]] MemoryBreakdown breakdown(const Runtime& runtime) const {
    MemoryBreakdown out;
    out.at_peak = at;
    if (memory) out.peak_at = fmt::format("{} of slot {}: {}", pass, slot, memory->peak_at);
    add_allocator_reserve(out, runtime);
    return out;
  }
};

}  // namespace

SlotMemory slot_memory(const Block& block, const SlotSharding& sharding) {
  SlotMemory out;
  out.gathered = sharding.gathered;
  out.staged.buffer = sharding.staged;
  out.has_backward = !block.backward.empty();
  out.host = block.host;
  for (std::size_t i = 1; i < block.input_grads.size(); ++i)
    if (block.input_grads[i] >= 0) out.carried_gradients += block.values[index(block.input_grads[i])].bytes();
  for (const ValueId g : block.weight_grads)
    if (g >= 0) out.unreduced += block.values[index(g)].bytes();
  return out;
}

SlotMemory with_passes(SlotMemory slot, const PassMemory& forward, const PassMemory& backward, const std::array<Bytes, kMemoryCategories>& kept, const Staged& staged) {
  slot.forward = &forward;
  slot.backward = &backward;
  slot.kept = kept;
  slot.staged = {std::max(slot.staged.buffer, staged.buffer), staged.ways};
  return slot;
}

SlotMemory with_passes(SlotMemory slot, const BlockMemory& block) {
  slot = with_passes(std::move(slot), block.forward, block.backward, block.kept, block.staged);
  slot.put_off = block.put_off;
  if (!block.weight_backward.peak_at.empty()) slot.weight_backward = &block.weight_backward;
  return slot;
}

Bytes staged_by(std::span<const SlotMemory> slots, const Plan& plan) {
  Staged all;
  for (const SlotMemory& s : slots) all = {std::max(all.buffer, s.staged.buffer), all.ways + s.staged.ways};
  return all.buffer + all.ways * kept_ways(plan);
}

MemoryBreakdown standing_memory(const StateBytes& state, const Problem& problem, const Plan& plan) {
  const Runtime& runtime = problem.runtime;
  MemoryBreakdown m;
  m[MemoryCategory::weights] = state.weights;
  m[MemoryCategory::adapters] = state.adapters;
  m[MemoryCategory::gradients] = state.gradients;
  m[MemoryCategory::optimizer] = state.optimizer + optimizer_window(state);
  m.host = state.host_weights + state.host_optimizer;
  m[MemoryCategory::runtime_context] = runtime.context;
  m[MemoryCategory::workspace] = runtime.own_kernels ? runtime.workspace : Bytes{};   // of others the allocator's replay holds it
  m[MemoryCategory::communication] = communicator_memory(problem, plan.parallelism, plan.context_exchange);
  return m;
}

void add_allocator_reserve(MemoryBreakdown& m, const Runtime& runtime) {
  const Bytes allocated = m.peak() - m[MemoryCategory::runtime_context] - m[MemoryCategory::communication];
  m[MemoryCategory::allocator_reserve] = {static_cast<std::int64_t>(std::llround(static_cast<double>(allocated.value) * runtime.allocator_overhead))};
}

MemoryBreakdown stage_memory(const StageMemory& stage, const Problem& problem, const Plan& plan) {
  Peak best;
  Categories base = standing_memory(stage.state, problem, plan).at_peak;
  add(base, MemoryCategory::communication, staged_by(stage.slots, plan));
  Categories all_kept{};
  for (const SlotMemory& s : stage.slots) add(all_kept, s.kept);
  add(base, all_kept, stage.in_flight - 1);
  add(base, MemoryCategory::activations, stage.carried * stage.in_flight);
  const auto n = static_cast<std::int64_t>(stage.slots.size());
  Bytes everything{};
  for (const SlotMemory& s : stage.slots) everything += s.gathered;
  // Weights there while slot s runs: itself and those ahead in the direction of the pass; without resharding all that forward left.
  const auto present = [&](std::int64_t s, std::int64_t direction) {
    Bytes b{};
    for (std::int64_t a = 0; a <= stage.prefetch; ++a) {
      const std::int64_t t = s + direction * a;
      if (t >= 0 && t < n) b += stage.slots[static_cast<std::size_t>(t)].gathered;
    }
    return b;
  };
  Bytes left{};  // forward without resharding: copies of earlier slots
  Categories before{};
  for (std::int64_t s = 0; s < n; ++s) {
    const SlotMemory& slot = stage.slots[static_cast<std::size_t>(s)];
    Categories now = base;
    add(now, before);
    add(now, slot.forward->at_peak);
    add(now, MemoryCategory::gathered_weights, present(s, 1) + (stage.reshard ? Bytes{} : left));
    best.consider(now, "forward", static_cast<std::size_t>(s), *slot.forward);
    add(before, slot.kept);
    left += slot.gathered;
  }
  Bytes unreduced{};
  Bytes remaining = everything;
  for (std::int64_t s = n; s-- > 0;) {
    const SlotMemory& slot = stage.slots[static_cast<std::size_t>(s)];
    add(before, slot.kept, -1);
    if (!slot.has_backward) continue;
    Categories now = base;
    add(now, before);
    add(now, slot.backward->at_peak);
    add(now, MemoryCategory::gathered_weights, stage.reshard ? present(s, -1) : remaining);
    add(now, MemoryCategory::gradients, unreduced);
    if (s + 1 < n || !stage.last_stage) add(now, MemoryCategory::activations, slot.carried_gradients);
    best.consider(now, "backward", static_cast<std::size_t>(s), *slot.backward);
    unreduced = slot.unreduced;
    remaining -= slot.gathered;
  }
  MemoryBreakdown out = best.breakdown(problem.runtime);
  out.host = stage.state.host_weights + stage.state.host_optimizer;
  for (const SlotMemory& s : stage.slots) out.host += s.host * stage.in_flight;
  return out;
}

const PassMemory& PairMemory::of(const Block& forward, const Block& backward) {
  const auto [it, fresh] = known_.try_emplace({&forward, &backward});
  if (fresh) it->second = side_by_side_memory(side_by_side(forward, backward), forward, backward, runtime_);
  return it->second;
}

MemoryBreakdown list_memory(std::span<const Instance> instances, const ListMemory& of, const Problem& problem, const Plan& plan) {
  Peak best;
  Categories now = standing_memory(of.state, problem, plan).at_peak;
  add(now, MemoryCategory::communication, staged_by(of.slots, plan));
  Bytes host = of.state.host_weights + of.state.host_optimizer, most_host = host;
  std::map<std::pair<std::int32_t, std::int32_t>, bool> carried;   // by chunk and micro-batch
  Bytes unreduced{};
  const auto enter = [&](std::int32_t slot, std::int32_t j) {
    const std::int32_t chunk = of.slots[index(slot)].chunk;
    bool& there = carried[{chunk, j}];
    if (!there) add(now, MemoryCategory::activations, of.chunks[index(chunk)].carried);
    there = true;
  };
  const auto leave = [&](std::int32_t slot) {   // the chunk's last backward pass frees what was carried
    const ChunkMemory& chunk = of.chunks[index(of.slots[index(slot)].chunk)];
    for (std::int32_t b = chunk.first; b < slot; ++b)
      if (of.slots[index(b)].has_backward) return;
    add(now, MemoryCategory::activations, Bytes{} - chunk.carried);
  };
  const auto consider_backward = [&](const char* what, const Instance& i, const PassMemory& pass) {
    const SlotMemory& slot = of.slots[index(i.slot)];
    const ChunkMemory& chunk = of.chunks[index(slot.chunk)];
    Categories peak = now;
    add(peak, pass.at_peak);
    add(peak, MemoryCategory::gradients, unreduced);
    if (i.slot + 1 < chunk.end || !chunk.ends_model) add(peak, MemoryCategory::activations, slot.carried_gradients);
    best.consider(peak, what, index(i.slot), pass);
    add(now, slot.put_off);
    host += Bytes{} - slot.host;
    unreduced = slot.weight_backward ? Bytes{} : slot.unreduced;
    leave(i.slot);
  };
  for (const Instance& i : instances) {
    if (i.slot < 0 || i.phase == Phase::reduce) continue;
    const SlotMemory& slot = of.slots[index(i.slot)];
    switch (i.phase) {
      case Phase::gather: add(now, MemoryCategory::gathered_weights, slot.gathered); break;
      case Phase::release: add(now, MemoryCategory::gathered_weights, Bytes{} - slot.gathered); break;
      case Phase::forward: {
        enter(i.slot, i.micro_batch);
        Categories peak = now;
        add(peak, slot.forward->at_peak);
        best.consider(peak, "forward", index(i.slot), *slot.forward);
        add(now, slot.kept);
        host += slot.host;
        most_host = std::max(most_host, host);
        unreduced = {};
        break;
      }
      case Phase::backward:
        add(now, slot.kept, -1);
        consider_backward("backward", i, *slot.backward);
        break;
      case Phase::forward_backward:
        enter(i.forward_slot, i.forward_micro_batch);
        add(now, slot.kept, -1);
        host += of.slots[index(i.forward_slot)].host;
        most_host = std::max(most_host, host);
        consider_backward("forward and backward", i, of.pair(i.forward_slot, i.slot));
        add(now, of.slots[index(i.forward_slot)].kept);
        break;
      case Phase::weight_backward: {
        add(now, slot.put_off, -1);
        Categories peak = now;
        add(peak, slot.weight_backward->at_peak);
        add(peak, MemoryCategory::gradients, unreduced);
        best.consider(peak, "weight gradients", index(i.slot), *slot.weight_backward);
        unreduced = slot.unreduced;
        break;
      }
      default: break;
    }
  }
  MemoryBreakdown out = best.breakdown(problem.runtime);
  out.host = most_host;
  return out;
}

MemoryBreakdown memory(const Program& program, const Problem& problem, const Plan& plan) {
  std::vector<BlockMemory> blocks;
  for (const Block& b : program.blocks) blocks.push_back(block_memory(b, problem, plan));
  ListMemory list;
  list.state = program.resident;
  for (const Slot& s : program.slots) {
    list.slots.push_back(with_passes(slot_memory(program.blocks[index(s.block)], s.sharding), blocks[index(s.block)]));
    list.slots.back().chunk = s.chunk;
    list.state += s.state;
  }
  const auto model_end = static_cast<std::int32_t>(problem.model.layers.size());
  for (const ProgramChunk& c : program.chunks) list.chunks.push_back({c.first, c.end, c.carried, program.slots[index(c.end) - 1].layer == model_end});
  PairMemory pairs(problem.runtime);
  list.pair = [&](std::int32_t f, std::int32_t b) -> const PassMemory& {
    return pairs.of(program.blocks[index(program.slots[index(f)].block)], program.blocks[index(program.slots[index(b)].block)]);
  };
  return list_memory(program.instances, list, problem, plan);
}

}  // namespace moeplan
