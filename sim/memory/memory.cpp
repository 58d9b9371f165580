#include "sim/memory/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

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
  out.has_backward = !block.backward.empty();
  for (std::size_t i = 1; i < block.input_grads.size(); ++i)
    if (block.input_grads[i] >= 0) out.carried_gradients += block.values[index(block.input_grads[i])].bytes();
  for (const ValueId g : block.weight_grads)
    if (g >= 0) out.unreduced += block.values[index(g)].bytes();
  return out;
}

SlotMemory with_passes(SlotMemory slot, const PassMemory& forward, const PassMemory& backward, const std::array<Bytes, kMemoryCategories>& kept) {
  slot.forward = &forward;
  slot.backward = &backward;
  slot.kept = kept;
  return slot;
}

MemoryBreakdown standing_memory(const StateBytes& state, const Runtime& runtime, const Parallelism& p) {
  MemoryBreakdown m;
  m[MemoryCategory::weights] = state.weights;
  m[MemoryCategory::adapters] = state.adapters;
  m[MemoryCategory::gradients] = state.gradients;
  m[MemoryCategory::optimizer] = state.optimizer;
  m[MemoryCategory::runtime_context] = runtime.context;
  std::int64_t communicators = p.world() > 1 ? 1 : 0;
  for (const int degree : {p.pp, p.tp, p.cp, p.ep, p.etp, p.dp_replicate, p.dp_shard, p.expert_shard}) communicators += degree > 1 && degree < p.world();
  m[MemoryCategory::communication] = runtime.communicator * communicators;
  return m;
}

void add_allocator_reserve(MemoryBreakdown& m, const Runtime& runtime) {
  const Bytes allocated = m.peak() - m[MemoryCategory::runtime_context] - m[MemoryCategory::communication];
  m[MemoryCategory::allocator_reserve] = {static_cast<std::int64_t>(std::llround(static_cast<double>(allocated.value) * runtime.allocator_overhead))};
}

MemoryBreakdown stage_memory(const StageMemory& stage, const Runtime& runtime, const Parallelism& parallelism) {
  Peak best;
  Categories base = standing_memory(stage.state, runtime, parallelism).at_peak;
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
  return best.breakdown(runtime);
}

MemoryBreakdown memory(const Program& program, const Problem& problem, const Plan& plan) {
  std::vector<BlockMemory> blocks;
  for (const Block& b : program.blocks) blocks.push_back(block_memory(b));
  std::vector<SlotMemory> slots;
  StateBytes state = program.resident;
  for (const Slot& s : program.slots) {
    const BlockMemory& m = blocks[index(s.block)];
    slots.push_back(with_passes(slot_memory(program.blocks[index(s.block)], s.sharding), m.forward, m.backward, m.kept));
    state += s.state;
  }
  Peak best;
  Categories now = standing_memory(state, problem.runtime, plan.parallelism).at_peak;
  std::map<std::int32_t, bool> carried;
  const bool last_stage = program.stage + 1 == plan.parallelism.pp;
  Bytes unreduced{};
  for (const Instance& i : program.instances) {
    if (i.phase == Phase::optimizer || i.phase == Phase::send_receive || i.phase == Phase::reduce) continue;
    const SlotMemory& slot = slots[index(i.slot)];
    const std::size_t s = index(i.slot);
    switch (i.phase) {
      case Phase::gather: add(now, MemoryCategory::gathered_weights, slot.gathered); break;
      case Phase::release: add(now, MemoryCategory::gathered_weights, Bytes{} - slot.gathered); break;
      case Phase::forward: {
        if (!carried[i.micro_batch]) { carried[i.micro_batch] = true; add(now, MemoryCategory::activations, program.carried); }
        Categories peak = now;
        add(peak, slot.forward->at_peak);
        best.consider(peak, "forward", s, *slot.forward);
        add(now, slot.kept);
        unreduced = {};
        break;
      }
      case Phase::backward: {
        add(now, slot.kept, -1);
        Categories peak = now;
        add(peak, slot.backward->at_peak);
        add(peak, MemoryCategory::gradients, unreduced);
        if (s + 1 < slots.size() || !last_stage) add(peak, MemoryCategory::activations, slot.carried_gradients);
        best.consider(peak, "backward", s, *slot.backward);
        unreduced = slot.unreduced;
        bool first = true;
        for (std::size_t b = 0; b < s; ++b) first = first && !slots[b].has_backward;
        if (first) add(now, MemoryCategory::activations, Bytes{} - program.carried);
        break;
      }
      default: break;
    }
  }
  return best.breakdown(problem.runtime);
}

}  // namespace moeplan
