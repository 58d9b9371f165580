#include "sim/engine/memory_timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "sim/program/call_scratch.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// Walks the instances in list order and keeps the blocks that are not freed yet.
class Walk {
 public:
  Walk(const Program& program, const Problem& problem, const Plan& plan, const Job& job, const Played& played, std::int32_t rank)
      : p_(program), model_end_(static_cast<std::int32_t>(problem.model.layers.size())), played_(played), rank_(rank), tasks_(job.programs[index(job.ranks[index(rank)].program)].task_of), pairs_(problem.runtime) {
    out_.rank = job.ranks[index(rank)].rank;
    for (const Block& b : p_.blocks) memory_.push_back(block_memory(b, problem, plan));
    StateBytes state = p_.resident;
    for (const Slot& s : p_.slots) {
      slots_.push_back(with_passes(slot_memory(p_.blocks[index(s.block)], s.sharding), memory_[index(s.block)]));
      state += s.state;
    }
    const MemoryBreakdown standing = standing_memory(state, problem, plan);
    for (const auto& [category, name] : EnumNames<MemoryCategory>::names) open(std::string(name), category, standing[category], 0);
    open("exchange and reduction buffer", MemoryCategory::communication, staged_by(slots_, plan), 0);
  }

  MemoryTimeline run() {
    for (std::size_t i = 0; i < p_.instances.size(); ++i) step(i);
    for (auto& b : out_.blocks) if (b.until < 0) { b.until = played_.step; b.free_order = order_++; }
    return std::move(out_);
  }

 private:
  std::pair<Picoseconds, Picoseconds> time(std::size_t instance) const {
    const std::int32_t task = tasks_[instance];
    return task < 0 ? std::pair{now_, now_} : played_.tasks[index(rank_)][index(task)];
  }
  std::int32_t open(const std::string& name, MemoryCategory category, Bytes bytes, Picoseconds at) {
    if (bytes.value <= 0) return -1;
    const auto [it, fresh] = names_.try_emplace(name, static_cast<std::int32_t>(out_.names.size()));
    if (fresh) out_.names.push_back(name);
    out_.blocks.push_back({category, bytes, at, -1, order_++, 0, it->second});
    return static_cast<std::int32_t>(out_.blocks.size() - 1);
  }
  void open_all(std::vector<std::int32_t>& list, const std::string& name, const std::array<Bytes, kMemoryCategories>& bytes, Picoseconds at) {
    for (const auto& [category, text] : EnumNames<MemoryCategory>::names)
      if (const std::int32_t b = open(name, category, bytes[static_cast<std::size_t>(category)], at); b >= 0) list.push_back(b);
  }
  void close(std::int32_t block, Picoseconds at) {
    if (block < 0) return;
    out_.blocks[index(block)].until = std::max(at, out_.blocks[index(block)].from);
    out_.blocks[index(block)].free_order = order_++;
  }
  void close_all(std::vector<std::int32_t>& list, Picoseconds at) {
    for (const std::int32_t b : list) close(b, at);
    list.clear();
  }
  std::string name_of_slot(std::int32_t slot) const {
    const Slot& s = p_.slots[index(slot)];
    return s.layer < 0 ? p_.blocks[index(s.block)].name : fmt::format("layer {} ({})", s.layer, p_.blocks[index(s.block)].name);
  }

  void step(std::size_t i) {
    const Instance& x = p_.instances[i];
    if (x.slot < 0) return;
    const auto [start, end] = time(i);
    const SlotMemory& slot = slots_[index(x.slot)];
    const std::string who = name_of_slot(x.slot);
    std::vector<std::int32_t> passing;
    switch (x.phase) {
      case Phase::gather: gathered_[x.slot] = open("gathered weights of " + who, MemoryCategory::gathered_weights, slot.gathered, start); break;
      case Phase::release:
        close(gathered_[x.slot], x.after.empty() ? now_ : time(index(x.after.front())).second);
        gathered_.erase(x.slot);
        break;
      case Phase::forward:
        enter(x.slot, x.micro_batch, start);
        open_all(passing, "forward of " + who, slot.forward->at_peak, start);
        close_all(passing, end);
        open_all(kept_[{x.slot, x.micro_batch}], "kept by " + who, slot.kept, end);
        unreduced_ = {};
        now_ = end;
        break;
      case Phase::backward:
        close_all(kept_[{x.slot, x.micro_batch}], start);
        backward(x, "backward of " + who, *slot.backward, start, end);
        break;
      case Phase::forward_backward: {
        const Slot &f = p_.slots[index(x.forward_slot)], &b = p_.slots[index(x.slot)];
        enter(x.forward_slot, x.forward_micro_batch, start);
        close_all(kept_[{x.slot, x.micro_batch}], start);
        backward(x, "forward of " + name_of_slot(x.forward_slot) + " and backward of " + who, pairs_.of(p_.blocks[index(f.block)], p_.blocks[index(b.block)]), start, end);
        open_all(kept_[{x.forward_slot, x.forward_micro_batch}], "kept by " + name_of_slot(x.forward_slot), slots_[index(x.forward_slot)].kept, end);
        break;
      }
      case Phase::weight_backward:
        close_all(put_off_[{x.slot, x.micro_batch}], start);
        open_all(passing, "weight gradients of " + who, slot.weight_backward->at_peak, start);
        passing.push_back(open("gradients not yet reduced", MemoryCategory::gradients, unreduced_, start));
        close_all(passing, end);
        unreduced_ = slot.unreduced;
        now_ = end;
        break;
      default: break;
    }
  }

  void enter(std::int32_t slot, std::int32_t micro_batch, Picoseconds at) {
    const std::int32_t chunk = p_.slots[index(slot)].chunk;
    if (carried_.count({chunk, micro_batch})) return;
    carried_[{chunk, micro_batch}] = open(fmt::format("carried, micro-batch {}", micro_batch), MemoryCategory::activations, p_.chunks[index(chunk)].carried, at);
  }

  void backward(const Instance& x, const std::string& what, const PassMemory& pass, Picoseconds start, Picoseconds end) {
    const SlotMemory& slot = slots_[index(x.slot)];
    const std::int32_t chunk = p_.slots[index(x.slot)].chunk;
    const ProgramChunk& c = p_.chunks[index(chunk)];
    std::vector<std::int32_t> passing;
    open_all(passing, what, pass.at_peak, start);
    passing.push_back(open("gradients not yet reduced", MemoryCategory::gradients, unreduced_, start));
    if (x.slot + 1 < c.end || p_.slots[index(c.end) - 1].layer != model_end_)
      passing.push_back(open("gradients of what is carried", MemoryCategory::activations, slot.carried_gradients, start));
    close_all(passing, end);
    open_all(put_off_[{x.slot, x.micro_batch}], "put off by " + name_of_slot(x.slot), slot.put_off, end);
    unreduced_ = slot.weight_backward ? Bytes{} : slot.unreduced;
    if (std::none_of(slots_.begin() + c.first, slots_.begin() + x.slot, [](const SlotMemory& s) { return s.has_backward; })) close(carried_[{chunk, x.micro_batch}], end);
    now_ = end;
  }

  const Program& p_;
  std::int32_t model_end_;
  const Played& played_;
  std::int32_t rank_;
  const std::vector<std::int32_t>& tasks_;
  std::vector<BlockMemory> memory_;
  std::vector<SlotMemory> slots_;
  std::map<std::string, std::int32_t> names_;
  std::map<std::int32_t, std::int32_t> gathered_;                                 ///< block by slot
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> carried_;         ///< by chunk and micro-batch
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> kept_, put_off_;
  PairMemory pairs_;
  Bytes unreduced_{};
  Picoseconds now_ = 0;   ///< end of the last block walked
  std::int32_t order_ = 0;
  MemoryTimeline out_;
};

}  // namespace

std::vector<MemoryChange> changes(const MemoryTimeline& t) {
  std::vector<MemoryChange> out;
  out.reserve(2 * t.blocks.size());
  for (std::size_t i = 0; i < t.blocks.size(); ++i) {
    out.push_back({t.blocks[i].from, t.blocks[i].alloc_order, static_cast<std::int32_t>(i), true});
    out.push_back({t.blocks[i].until, t.blocks[i].free_order, static_cast<std::int32_t>(i), false});
  }
  std::sort(out.begin(), out.end(), [](const MemoryChange& a, const MemoryChange& b) { return std::pair(a.at, a.order) < std::pair(b.at, b.order); });
  return out;
}

MemoryTimeline memory_timeline(const Program& program, const Problem& problem, const Plan& plan, const Job& job, const Played& played, std::int32_t rank) {
  MemoryTimeline out = Walk(program, problem, plan, job, played, rank).run();
  MemoryBreakdown now;
  std::int64_t sum = 0, best = -1;
  for (const MemoryChange& c : changes(out)) {
    const MemoryBlock& b = out.blocks[index(c.block)];
    const Bytes delta = c.comes ? b.bytes : Bytes{} - b.bytes;
    now[b.category] += delta;
    sum += delta.value;
    if (sum > best) {
      best = sum;
      out.peak.at_peak = now.at_peak;
      out.peak.peak_at = out.names[index(b.name)];
      out.peak_at = c.at;
    }
  }
  add_allocator_reserve(out.peak, problem.runtime);
  return out;
}

}  // namespace moeplan
