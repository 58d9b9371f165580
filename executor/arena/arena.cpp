#include "executor/arena/arena.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/walk/pieces.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// Walks the instances and notes who lives when.
class Layout {
 public:
  Layout(const Program& program, const Problem& problem, const HeldType& held, const Parallelism& parallelism,
         const CallWorkspace& scratch, const FetchedType& fetched)
      : p_(program),
        problem_(problem),
        held_(held),
        parallelism_(parallelism),
        scratch_(scratch),
        fetched_(fetched) {
    std::int32_t micro_batches = 1;
    if (parallelism.pp > 1)
      for (const Instance& i : program.instances) micro_batches = std::max(micro_batches, i.micro_batch + 1);
    plan_.lanes.resize(index(micro_batches));
    for (LanePlacement& lane : plan_.lanes) lane.slots.resize(program.slots.size()), lane.ends.resize(program.chunks.size());
    open_.assign(index(micro_batches), std::vector<Open>(program.chunks.size()));
    find_chunks();
  }

  ArenaPlan run() {
    for (std::size_t at = 0; at < p_.instances.size(); ++at) {
      const Instance& i = p_.instances[at];
      plan_.gathered.push_back(-1);
      if (i.phase == Phase::gather && i.micro_batch >= static_cast<std::int32_t>(open_.size()))
        plan_.gathered.back() = again(i);
      if (i.micro_batch < 0 || i.micro_batch >= static_cast<std::int32_t>(open_.size())) continue;
      switch (i.phase) {
        case Phase::gather:
          plan_.gathered.back() = gather(i);
          break;
        case Phase::release:
          release(i.slot);
          break;
        case Phase::forward:
          forward(i.slot, i.micro_batch);
          break;
        case Phase::backward:
          backward(i.slot, i.micro_batch);
          break;
        case Phase::weight_backward:
          weight_backward(i.slot, i.micro_batch);
          break;
        case Phase::send_receive:
          i.sent.value > 0 ? send(i, plan_.chunk[at]) : receive(i, plan_.chunk[at], goes_with_next(p_, at));
          break;
        default:
          break;
      }
    }
    find_peak();
    plan_.size = place_buffers(plan_.buffers);
    plan_.host_size = place_buffers(plan_.host);
    return std::move(plan_);
  }

 private:
  /// A message belongs to the virtual stage that runs next (what arrives) or ran last (what leaves) for its micro-batch.
  void find_chunks() {
    plan_.chunk.assign(p_.instances.size(), -1);
    for (std::size_t at = 0; at < p_.instances.size(); ++at) {
      const Instance& m = p_.instances[at];
      if (m.phase != Phase::send_receive) continue;
      const bool arrives = m.sent.value == 0, activations = arrives != m.with_next;
      const auto runs = [&](const Instance& i) -> std::int32_t {
        return i.phase == (activations ? Phase::forward : Phase::backward) && i.micro_batch == m.micro_batch ? i.slot : -1;
      };
      std::int32_t slot = -1;
      if (arrives)
        for (std::size_t k = at + 1; k < p_.instances.size() && slot < 0; ++k) slot = runs(p_.instances[k]);
      else
        for (std::size_t k = at; k-- > 0 && slot < 0;) slot = runs(p_.instances[k]);
      if (slot < 0) throw std::logic_error("a message of no pass");
      plan_.chunk[at] = p_.slots[index(slot)].chunk;
    }
  }

  /// A micro-batch between its first and its last slot of a virtual stage.
  struct Open {
    std::int32_t stream = -1, gradient = -1, indices = -1;
    std::vector<std::int32_t> stored;
    std::map<std::int32_t, std::int32_t> waiting;  ///< carried value's buffer -> buffer of its gradient so far
  };

  std::int32_t add(std::string name, Bytes bytes, MemoryCategory category) {
    plan_.buffers.push_back({std::move(name), bytes, category, now_, now_, 0});
    return static_cast<std::int32_t>(plan_.buffers.size() - 1);
  }
  void touch(std::int32_t buffer) {
    if (buffer >= 0) plan_.buffers[index(buffer)].last = std::max(plan_.buffers[index(buffer)].last, now_);
  }
  const Block& block(std::int32_t slot) const { return p_.blocks[index(p_.slots[index(slot)].block)]; }
  Bytes bytes_of(const Value& v) const { return {plain_bytes(held_(v.dtype)) * v.shape.elements()}; }

  std::int32_t value_buffer(const Block& b, std::int32_t slot, ValueId v) {
    const ValueId root = root_of(b, v);
    const Value& value = b.values[index(root)];
    return add(fmt::format("slot {}: {}", slot, value.name), bytes_of(value), b.category[index(root)]);
  }

  /// After the calls before it: what gathers waits for them.
  std::int32_t gather(const Instance& i) {
    ++now_;
    const std::int32_t id =
        add(fmt::format("slot {}: gathered weights", i.slot), gather_layout(block(i.slot), parallelism_, held_, fetched_).bytes,
            MemoryCategory::gathered_weights);
    gathered_[i.slot] = id;
    gathers_[{i.slot, i.micro_batch}].push_back(id);
    return id;
  }
  /// The buffer that the same gather of the first micro-batch has.
  std::int32_t again(const Instance& i) { return gathers_.at({i.slot, 0}).at(repeated_[{i.slot, i.micro_batch}]++); }
  void release(std::int32_t slot) {
    if (const auto it = gathered_.find(slot); it != gathered_.end()) {
      plan_.buffers[index(it->second)].last = std::max(plan_.buffers[index(it->second)].last, now_ - 1);
      gathered_.erase(it);
    }
  }
  void hold_gathered() {
    for (const auto& [slot, id] : gathered_) touch(id);
  }

  /// Sends are under way until the next message or call.
  void hold_sends(bool end) {
    for (const std::int32_t id : sending_) touch(id);
    if (end) sending_.clear();
  }

  const ProgramChunk& chunk_of(std::int32_t slot) const { return p_.chunks[index(p_.slots[index(slot)].chunk)]; }
  Open& open_of(std::int32_t micro_batch, std::int32_t slot) { return open_[index(micro_batch)][index(p_.slots[index(slot)].chunk)]; }

  /// `more`: another one arrives in the same call, until whose end what is sent is under way.
  void receive(const Instance& i, std::int32_t chunk, bool more) {
    ++now_;
    hold_sends(!more);
    const ProgramChunk& of = p_.chunks[index(chunk)];
    Open& open = open_[index(i.micro_batch)][index(chunk)];
    ChunkEnds& ends = plan_.lanes[index(i.micro_batch)].ends[index(chunk)];
    const auto take = [&](const char* what, std::size_t n) {
      std::vector<std::int32_t> out;
      const Block& entrance = block(of.first);
      const Bytes stream = of.receives ? bytes_of(entrance.values[index(entrance.inputs.front())]) : stream_bytes(of);
      for (std::size_t v = 0; v < n; ++v)
        out.push_back(add(fmt::format("{} {} from another stage", what, v), stream, MemoryCategory::activations));
      return out;
    };
    if (!i.with_next) {
      ends.entering = take("value", carried_blocks(block(of.first)) + 1);
      open.stream = ends.entering.front();
      open.stored.assign(ends.entering.begin() + 1, ends.entering.end());
    } else {
      ends.leaving_gradients = take("gradient", open.stored.size() + 1);
      open.gradient = ends.leaving_gradients.front();
      for (std::size_t v = 0; v < open.stored.size(); ++v) open.waiting[open.stored[v]] = ends.leaving_gradients[v + 1];
    }
  }

  void send(const Instance& i, std::int32_t chunk) {
    ++now_;
    Open& open = open_[index(i.micro_batch)][index(chunk)];
    ChunkEnds& ends = plan_.lanes[index(i.micro_batch)].ends[index(chunk)];
    std::vector<std::int32_t>& out = i.with_next ? ends.leaving : ends.entering_gradients;
    out.push_back(i.with_next ? open.stream : open.gradient);
    if (i.with_next)
      out.insert(out.end(), open.stored.begin(), open.stored.end());
    else
      for (std::size_t v = 1; v < ends.entering.size(); ++v) {
        const auto it = open.waiting.find(ends.entering[v]);
        out.push_back(it == open.waiting.end() ? -1 : it->second);
      }
    if (std::find(out.begin(), out.end(), -1) != out.end())
      throw InputError("plan",
                       fmt::format("stage {} has no gradient to send back: nothing before it is trained", p_.stage),
                       "pp = 1, or tune the first layers too");
    sending_.insert(sending_.end(), out.begin(), out.end());
    hold_sends(false);
  }

  Bytes stream_bytes(const ProgramChunk& of) const {
    const Block& b = block(of.end - 1);
    return bytes_of(b.values[index(b.outputs.front())]);
  }

  /// The value in whose memory `v` lies: that which it views, whole.
  static ValueId root_of(const Block& b, ValueId v) { return b.alias[index(whole_of(b, v))]; }

  /// Places what the calls write, and lets what they touch live until then.
  void pass(const Block& b, std::int32_t slot, const std::vector<BlockNode>& nodes, PassPlacement& place, SlotPlacement& of) {
    for (const BlockNode& node : nodes) {
      ++now_;
      if (const CommCall* comm = std::get_if<CommCall>(&node.call)) copy(b, slot, node, comm->collective, of);
      for (const ValueId w : node.writes)
        if (const ValueId root = root_of(b, w); place.values[index(root)] < 0)
          place.values[index(root)] = value_buffer(b, slot, root);
      for (const auto* list : {&node.reads, &node.writes})
        for (const ValueId v : *list) touch(place.values[index(root_of(b, v))]);
      // The first piece begins a weight's gradient, which the program has from the last piece on.
      for (std::size_t g = 0; !b.whole.empty() && g < node.gradients.size(); ++g)
        if (const ValueId v = node.gradients[g]; v >= 0 && std::find(b.weight_grads.begin(), b.weight_grads.end(), v) != b.weight_grads.end()) {
          if (place.values[index(v)] < 0) place.values[index(v)] = value_buffer(b, slot, v);
          touch(place.values[index(v)]);
        }
      const OpCall* op = std::get_if<OpCall>(&node.call);
      const Bytes scratch = !op ? Bytes{} : scratch_ ? scratch_(b, node) : workspace(op->op, op->pass, op->wants);
      place.workspace.push_back(scratch.value > 0 ? add(fmt::format("slot {}: workspace of {}", slot, kind(op->op)),
                                                        scratch, MemoryCategory::workspace)
                                                  : -1);
      hold_gathered();
    }
    for (std::size_t v = 0; v < b.values.size(); ++v) place.values[v] = place.values[index(root_of(b, static_cast<ValueId>(v)))];
  }

  /// A kept value has its place in host memory from the copy that takes it there to the one that brings it back.
  void copy(const Block& b, std::int32_t slot, const BlockNode& node, Collective collective, SlotPlacement& of) {
    if (collective == Collective::to_host) {
      const Value& value = b.values[index(node.reads.front())];
      of.host[node.reads.front()] = static_cast<std::int32_t>(plan_.host.size());
      plan_.host.push_back({fmt::format("slot {}: {}", slot, value.name), bytes_of(value), MemoryCategory::activations, now_, now_, 0});
    } else if (collective == Collective::from_host) {
      plan_.host[index(of.host.at(node.operands.front()))].last = now_;
    }
  }

  void forward(std::int32_t slot, std::int32_t micro_batch) {
    const Block& b = block(slot);
    Open& open = open_of(micro_batch, slot);
    ++now_;
    hold_sends(true);
    SlotPlacement& of = plan_.lanes[index(micro_batch)].slots[index(slot)];
    PassPlacement& place = of.forward;
    place.first = now_;
    place.values.assign(b.values.size(), -1);
    for (std::size_t i = 0; i < b.inputs.size(); ++i) {
      const std::string& name = b.values[index(b.inputs[i])].name;
      std::int32_t& at = place.values[index(b.inputs[i])];
      if (i == 0)
        at = slot == 0 && !chunk_of(slot).receives ? value_buffer(b, slot, b.inputs[0]) : open.stream;
      else if (name == "indices")
        at = open.indices;
      else if (name.starts_with("block_"))
        at = open.stored[open.stored.size() - carried_blocks(b) + static_cast<std::size_t>(std::stoul(name.substr(6)))];
      touch(at);
    }
    pass(b, slot, b.forward, place, of);
    place.last = now_;
    const std::int32_t layer = p_.slots[index(slot)].layer;
    if (layer >= 0 && index(layer) < problem_.model.layers.size() && problem_.model.layers[index(layer)].stores_block)
      open.stored.push_back(place.values[index(b.inputs[0])]);
    for (const ValueId out : b.outputs) touch(place.values[index(out)]);
    open.stream = place.values[index(b.outputs.front())];
    if (b.outputs.size() > 1) open.indices = place.values[index(b.outputs[1])];
  }

  static std::size_t carried_blocks(const Block& b) {
    return static_cast<std::size_t>(std::count_if(
        b.inputs.begin(), b.inputs.end(), [&](ValueId v) { return b.values[index(v)].name.starts_with("block_"); }));
  }

  void backward(std::int32_t slot, std::int32_t micro_batch) {
    const Block& b = block(slot);
    Open& open = open_of(micro_batch, slot);
    ++now_;
    hold_sends(true);
    SlotPlacement& at = plan_.lanes[index(micro_batch)].slots[index(slot)];
    PassPlacement& place = at.backward;
    place.first = now_;
    place.values = at.forward.values;
    const bool last = index(slot) + 1 == p_.slots.size() && chunk_of(slot).leaving.value == 0;
    for (std::size_t i = 0; i < b.output_grads.size(); ++i) {
      const ValueId g = b.output_grads[i];
      if (g < 0) continue;
      place.values[index(b.alias[index(g)])] = last ? value_buffer(b, slot, g) : open.gradient;
      touch(place.values[index(b.alias[index(g)])]);
    }
    pass(b, slot, b.backward, place, at);
    place.last = now_;
    for (const auto* list : {&b.input_grads, &b.weight_grads})
      for (const ValueId g : *list)
        if (g >= 0) touch(place.values[index(g)]);
    if (!b.input_grads.empty()) open.gradient = b.input_grads[0] >= 0 ? place.values[index(b.input_grads[0])] : -1;
    carry(b, slot, at, open);
    // Reduction (or accumulation) of a slot's gradients goes on while the slot before it runs.
    for (const std::int32_t buffer : unreduced_) touch(buffer);
    unreduced_.clear();
    if (!b.weight_backward.empty()) return;
    for (const ValueId g : b.weight_grads)
      if (g >= 0) unreduced_.push_back(place.values[index(g)]);
  }

  /// What the backward pass has put off. The gradients that it has made itself wait for the others.
  void weight_backward(std::int32_t slot, std::int32_t micro_batch) {
    const Block& b = block(slot);
    ++now_;
    hold_sends(true);
    SlotPlacement& of = plan_.lanes[index(micro_batch)].slots[index(slot)];
    PassPlacement& place = of.backward;
    pass(b, slot, b.weight_backward, place, of);
    for (const ValueId g : b.weight_grads)
      if (g >= 0) touch(place.values[index(g)]);
  }

  /// Gradients of carried values wait for the slot that made them.
  void carry(const Block& b, std::int32_t slot, SlotPlacement& at, Open& open) {
    for (auto& [buffer, sum] : open.waiting) touch(sum);
    for (std::size_t i = 1; i < b.input_grads.size(); ++i) {
      if (b.input_grads[i] < 0) continue;
      const std::int32_t of = at.forward.values[index(b.inputs[i])], from = at.backward.values[index(b.input_grads[i])];
      auto [it, fresh] = open.waiting.try_emplace(of, from);
      if (!fresh) at.sums.push_back({from, it->second});
      touch(it->second);
    }
    if (const auto it = open.waiting.find(at.forward.values[index(b.inputs[0])]);
        it != open.waiting.end() && (slot > 0 || chunk_of(slot).receives) && open.gradient >= 0) {
      if (it->second != open.gradient) at.sums.push_back({it->second, open.gradient});
      open.waiting.erase(it);
    }
  }

  void find_peak() {
    std::map<std::int64_t, std::vector<std::int32_t>> starts, ends;
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      starts[plan_.buffers[i].first].push_back(static_cast<std::int32_t>(i));
      ends[plan_.buffers[i].last + 1].push_back(static_cast<std::int32_t>(i));
    }
    std::array<Bytes, kMemoryCategories> live{};
    std::vector<Bytes> at;   // each call
    for (std::int64_t t = 0; t <= now_; ++t) {
      for (const std::int32_t i : ends[t])
        live[static_cast<std::size_t>(plan_.buffers[index(i)].category)] -= plan_.buffers[index(i)].bytes;
      for (const std::int32_t i : starts[t])
        live[static_cast<std::size_t>(plan_.buffers[index(i)].category)] += plan_.buffers[index(i)].bytes;
      Bytes sum{};
      for (const Bytes b : live) sum += b;
      at.push_back(sum);
      if (sum.value <= plan_.peak.value) continue;
      plan_.peak = sum;
      plan_.at_peak = live;
      plan_.peak_at = starts[t].empty() ? fmt::format("call {}", t) : plan_.buffers[index(starts[t].front())].name;
    }
    for (LanePlacement& lane : plan_.lanes)
      for (SlotPlacement& slot : lane.slots)
        for (PassPlacement* pass : {&slot.forward, &slot.backward})
          for (std::int64_t t = pass->first; t <= pass->last; ++t) pass->alive = std::max(pass->alive, at[static_cast<std::size_t>(t)]);
  }

  const Program& p_;
  const Problem& problem_;
  const HeldType& held_;
  const Parallelism& parallelism_;
  const CallWorkspace& scratch_;
  const FetchedType& fetched_;
  ArenaPlan plan_;
  std::int64_t now_ = 0;
  std::vector<std::vector<Open>> open_;  // per lane and virtual stage
  std::vector<std::int32_t> unreduced_, sending_;
  std::map<std::int32_t, std::int32_t> gathered_;  // slot -> buffer
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>>
      gathers_;  // (slot, micro-batch) -> buffers in order
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> repeated_;
};

}  // namespace

bool goes_with_next(const Program& program, std::size_t at) {
  const auto arrives = [&](std::size_t i) {
    return i < program.instances.size() && program.instances[i].phase == Phase::send_receive && program.instances[i].sent.value == 0;
  };
  return arrives(at) && arrives(at + 1);
}

ArenaPlan plan_arena(const Program& program, const Problem& problem, const HeldType& held,
                     const Parallelism& parallelism, const CallWorkspace& scratch, const FetchedType& fetched) {
  for (const Instance& i : program.instances)
    if (i.phase == Phase::forward_backward) throw std::logic_error("passes side by side, which are written out first");
  for (const ProgramChunk& chunk : program.chunks) {
    const Block& first = program.blocks[index(program.slots[index(chunk.first)].block)];
    for (std::size_t i = 1; chunk.receives && i < first.inputs.size(); ++i)
      if (const std::string& name = first.values[index(first.inputs[i])].name; !name.starts_with("block_"))
        throw InputError(
            "plan.stage_layers",
            fmt::format("stage {} would receive {} from the stage before, which is priced, not run", program.stage, name),
            "pp = 1, or another cut of the layers");
  }
  return Layout(program, problem, held, parallelism, scratch, fetched).run();
}

}  // namespace moeplan
