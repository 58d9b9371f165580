#include "executor/arena/arena.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/error.hpp"

namespace moeplan {
namespace {

constexpr std::int64_t kAlignment = 64;

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// Walks the instances of the first micro-batch and notes who lives when.
class Layout {
 public:
  Layout(const Program& program, const Problem& problem, const HeldBytes& held) : p_(program), problem_(problem), held_(held) { plan_.slots.resize(program.slots.size()); }

  ArenaPlan run() {
    for (const Instance& i : p_.instances) {
      if (i.micro_batch > 0 || i.slot < 0) continue;
      switch (i.phase) {
        case Phase::gather: gather(i.slot); break;
        case Phase::release: release(i.slot); break;
        case Phase::forward: forward(i.slot); break;
        case Phase::backward: backward(i.slot); break;
        default: break;
      }
    }
    find_peak();
    plan_.size = place_buffers(plan_.buffers);
    return std::move(plan_);
  }

 private:
  std::int32_t add(std::string name, Bytes bytes, MemoryCategory category) {
    plan_.buffers.push_back({std::move(name), bytes, category, now_, now_, 0});
    return static_cast<std::int32_t>(plan_.buffers.size() - 1);
  }
  void touch(std::int32_t buffer) {
    if (buffer >= 0) plan_.buffers[index(buffer)].last = std::max(plan_.buffers[index(buffer)].last, now_);
  }
  const Block& block(std::int32_t slot) const { return p_.blocks[index(p_.slots[index(slot)].block)]; }

  std::int32_t value_buffer(const Block& b, std::int32_t slot, ValueId v) {
    const ValueId root = b.alias[index(v)];
    const Value& value = b.values[index(root)];
    return add(fmt::format("slot {}: {}", slot, value.name), held_(value.dtype, value.shape), b.category[index(root)]);
  }

  void gather(std::int32_t slot) {
    const Block& b = block(slot);
    Bytes bytes{};
    for (const Weight& w : b.weights)
      if (w.trained && held_(DType::bf16, w.shape) != held_(DType::f32, w.shape)) bytes += held_(w.dtype, w.shape);
    SlotPlacement& place = plan_.slots[index(slot)];
    const std::int32_t id = add(fmt::format("slot {}: cast weights", slot), bytes, MemoryCategory::gathered_weights);
    (forward_done_.count(slot) ? place.gathered_backward : place.gathered) = id;
    gathered_[slot] = id;
    ++now_;
  }
  void release(std::int32_t slot) {
    if (const auto it = gathered_.find(slot); it != gathered_.end()) {
      plan_.buffers[index(it->second)].last = now_ - 1;
      gathered_.erase(it);
    }
  }
  void hold_gathered() {
    for (const auto& [slot, id] : gathered_) touch(id);
  }

  /// Places what the calls write, and lets what they touch live until then.
  void pass(const Block& b, std::int32_t slot, const std::vector<BlockNode>& nodes, PassPlacement& place) {
    for (const BlockNode& node : nodes) {
      ++now_;
      for (const ValueId w : node.writes)
        if (const ValueId root = b.alias[index(w)]; place.values[index(root)] < 0) place.values[index(root)] = value_buffer(b, slot, root);
      for (const auto* list : {&node.reads, &node.writes})
        for (const ValueId v : *list) touch(place.values[index(b.alias[index(v)])]);
      const OpCall* op = std::get_if<OpCall>(&node.call);
      const Bytes scratch = op ? workspace(op->op, op->pass, op->wants) : Bytes{};
      place.workspace.push_back(scratch.value > 0 ? add(fmt::format("slot {}: workspace of {}", slot, kind(op->op)), scratch, MemoryCategory::workspace) : -1);
      hold_gathered();
    }
    for (std::size_t v = 0; v < b.values.size(); ++v) place.values[v] = place.values[index(b.alias[v])];
  }

  void forward(std::int32_t slot) {
    const Block& b = block(slot);
    ++now_;
    PassPlacement& place = plan_.slots[index(slot)].forward;
    place.values.assign(b.values.size(), -1);
    for (std::size_t i = 0; i < b.inputs.size(); ++i) {
      const std::string& name = b.values[index(b.inputs[i])].name;
      std::int32_t& at = place.values[index(b.inputs[i])];
      if (i == 0) at = slot == 0 ? value_buffer(b, slot, b.inputs[0]) : stream_;
      else if (name == "indices") at = indices_;
      else if (name.starts_with("block_")) at = stored_[stored_.size() - carried_blocks(b) + static_cast<std::size_t>(std::stoul(name.substr(6)))];
      touch(at);
    }
    pass(b, slot, b.forward, place);
    const std::int32_t layer = p_.slots[index(slot)].layer;
    if (layer >= 0 && index(layer) < problem_.model.layers.size() && problem_.model.layers[index(layer)].stores_block) stored_.push_back(place.values[index(b.inputs[0])]);
    for (const ValueId out : b.outputs) touch(place.values[index(out)]);
    stream_ = place.values[index(b.outputs.front())];
    if (b.outputs.size() > 1) indices_ = place.values[index(b.outputs[1])];
    forward_done_[slot] = true;
  }

  static std::size_t carried_blocks(const Block& b) {
    return static_cast<std::size_t>(std::count_if(b.inputs.begin(), b.inputs.end(), [&](ValueId v) { return b.values[index(v)].name.starts_with("block_"); }));
  }

  void backward(std::int32_t slot) {
    const Block& b = block(slot);
    ++now_;
    SlotPlacement& at = plan_.slots[index(slot)];
    PassPlacement& place = at.backward;
    place.values = at.forward.values;
    const bool last = index(slot) + 1 == p_.slots.size();
    for (std::size_t i = 0; i < b.output_grads.size(); ++i) {
      const ValueId g = b.output_grads[i];
      if (g < 0) continue;
      place.values[index(b.alias[index(g)])] = last ? value_buffer(b, slot, g) : gradient_;
      touch(place.values[index(b.alias[index(g)])]);
    }
    pass(b, slot, b.backward, place);
    for (const auto* list : {&b.input_grads, &b.weight_grads})
      for (const ValueId g : *list) if (g >= 0) touch(place.values[index(g)]);
    if (!b.input_grads.empty()) gradient_ = b.input_grads[0] >= 0 ? place.values[index(b.input_grads[0])] : -1;
    carry(b, slot, at);
    // Reduction (or accumulation) of a slot's gradients goes on while the slot before it runs.
    for (const std::int32_t buffer : unreduced_) touch(buffer);
    unreduced_.clear();
    for (const ValueId g : b.weight_grads) if (g >= 0) unreduced_.push_back(place.values[index(g)]);
  }

  /// Gradients of carried values wait for the slot that made them.
  void carry(const Block& b, std::int32_t slot, SlotPlacement& at) {
    for (auto& [buffer, sum] : waiting_) touch(sum);
    for (std::size_t i = 1; i < b.input_grads.size(); ++i) {
      if (b.input_grads[i] < 0) continue;
      const std::int32_t of = at.forward.values[index(b.inputs[i])], from = at.backward.values[index(b.input_grads[i])];
      auto [it, fresh] = waiting_.try_emplace(of, from);
      if (!fresh) at.sums.push_back({from, it->second});
      touch(it->second);
    }
    if (const auto it = waiting_.find(at.forward.values[index(b.inputs[0])]); it != waiting_.end() && slot > 0 && gradient_ >= 0) {
      if (it->second != gradient_) at.sums.push_back({it->second, gradient_});
      waiting_.erase(it);
    }
  }

  void find_peak() {
    std::map<std::int64_t, std::vector<std::int32_t>> starts, ends;
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      starts[plan_.buffers[i].first].push_back(static_cast<std::int32_t>(i));
      ends[plan_.buffers[i].last + 1].push_back(static_cast<std::int32_t>(i));
    }
    std::array<Bytes, kMemoryCategories> live{};
    for (std::int64_t t = 0; t <= now_; ++t) {
      for (const std::int32_t i : ends[t]) live[static_cast<std::size_t>(plan_.buffers[index(i)].category)] -= plan_.buffers[index(i)].bytes;
      for (const std::int32_t i : starts[t]) live[static_cast<std::size_t>(plan_.buffers[index(i)].category)] += plan_.buffers[index(i)].bytes;
      Bytes sum{};
      for (const Bytes b : live) sum += b;
      if (sum.value <= plan_.peak.value) continue;
      plan_.peak = sum;
      plan_.at_peak = live;
      plan_.peak_at = starts[t].empty() ? fmt::format("call {}", t) : plan_.buffers[index(starts[t].front())].name;
    }
  }

  const Program& p_;
  const Problem& problem_;
  const HeldBytes& held_;
  ArenaPlan plan_;
  std::int64_t now_ = 0;
  std::int32_t stream_ = -1, gradient_ = -1, indices_ = -1;
  std::vector<std::int32_t> stored_, unreduced_;
  std::map<std::int32_t, std::int32_t> gathered_;    // slot -> buffer
  std::map<std::int32_t, std::int32_t> waiting_;     // carried value's buffer -> buffer of its gradient so far
  std::map<std::int32_t, bool> forward_done_;
};

}  // namespace

Bytes place_buffers(std::vector<ArenaBuffer>& buffers) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return buffers[a].bytes.value > buffers[b].bytes.value; });
  std::vector<std::size_t> placed;   // by offset
  std::int64_t size = 0;
  for (const std::size_t i : order) {
    ArenaBuffer& mine = buffers[i];
    const std::int64_t need = (mine.bytes.value + kAlignment - 1) / kAlignment * kAlignment;
    std::int64_t at = 0;
    for (const std::size_t j : placed) {
      const ArenaBuffer& other = buffers[j];
      if (other.last < mine.first || mine.last < other.first) continue;
      if (at + need <= other.offset) break;
      at = std::max(at, (other.offset + other.bytes.value + kAlignment - 1) / kAlignment * kAlignment);
    }
    mine.offset = at;
    size = std::max(size, at + need);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i, [&](std::size_t a, std::size_t b) { return buffers[a].offset < buffers[b].offset; }), i);
  }
  return {size};
}

ArenaPlan plan_arena(const Program& program, const Problem& problem, const HeldBytes& held) {
  if (program.chunks.size() != 1 || program.chunks.front().receives || program.chunks.front().leaving.value > 0)
    throw InputError("plan", "is for several pipeline stages; this arena is of one", "pp = 1");
  for (const Instance& i : program.instances)
    if (i.phase == Phase::forward_backward || i.phase == Phase::weight_backward) throw InputError("plan", fmt::format("has {} parts, which one stage does not need", name_of(i.phase)), "the 1F1B schedule");
  return Layout(program, problem, held).run();
}

}  // namespace moeplan
