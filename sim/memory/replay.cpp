#include "sim/memory/replay.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "sim/memory/replay_fsdp.hpp"
#include "sim/memory/replay_loss.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

class Replay {
 public:
  Replay(const Program& program, const Problem& problem, const Plan& plan, CachingAllocator::Options options)
      : program_(program), problem_(problem), plan_(plan), buffers_(options), loss_(problem.runtime, buffers_) {
    if (ReplayFsdp::used(problem, plan)) fsdp_.emplace(program, problem, plan, buffers_);
  }

  ReplayedPeak run() {
    const Runtime& runtime = problem_.runtime;
    hold(runtime.workspace);
    hold(runtime.bucket);
    hold_stand_ins();
    StateBytes all = program_.resident;
    const auto several = runtime.kept.find("adapters");
    const auto adapters = several == runtime.kept.end() ? 1 : static_cast<std::int64_t>(several->second);
    // Parameters and gradients live in one buffer each where the runtime flattens them, otherwise block by block.
    for (const Slot& s : program_.slots) {
      all += s.state;
      if (!runtime.distributed_optimizer)
        for (const Bytes b : {s.state.weights, Bytes{s.state.adapters.value * adapters}}) hold(b);
    }
    if (runtime.distributed_optimizer)
      hold_flattened(all);
    else
      hold(program_.resident.weights);
    for (int step = 0; step < 2; ++step) {
      for (const Instance& i : program_.instances) play(i);
      drop_unreduced();
      drop_held();
      // Moments come to be in the first update, in holes that the first step left.
      if (step == 0) hold_moments();
      if (runtime.update_temporary) {  // foreach: a list of tensors, one a weight
        std::vector<Buffer> list;
        const int lists = runtime.kept.contains("second_temporary") ? 2 : 1;
        for (int of = 0; of < lists; ++of)
          for (const Slot& s : program_.slots)
            each_share(s, static_cast<double>(s.state.trained_elements) * (runtime.moment == DType::f32 ? 4 : 2),
                       [&](Bytes b) { list.push_back(take(b)); });
        for (const Buffer b : list) drop(b);
      }
      for (const auto& [slot, gradients] : gradients_) drop(gradients);  // zero_grad gives them back
      gradients_.clear();
      if (fsdp_) fsdp_->drop_gradients();
    }
    return {buffers_.allocator().peak_allocated(), buffers_.allocator().peak_reserved(), buffers_.refused()};
  }

 private:
  using Buffer = ReplayBuffers::Buffer;

  Buffer take(Bytes size, int stream = kComputeStream) { return buffers_.take(size, stream); }
  void hold(Bytes size) { buffers_.hold(size); }
  void drop(Buffer b) { buffers_.drop(b); }

  /// Megatron's order: every weight comes to be on its own, then one buffer of weights and one of gradients take them
  /// in, and the single ones are freed; the fp32 shares of the optimizer come to be one by one in the holes.
  void hold_flattened(const StateBytes& all) {
    const bool copied = problem_.runtime.compute_copy;
    std::vector<Buffer> single;
    Bytes copies{};
    for (const Slot& s : program_.slots) {
      for (const Weight& w : program_.blocks[index(s.block)].weights) {
        if (!copied || !w.trained || w.adapter) continue;
        const Bytes bytes = stored_bytes(DType::bf16, w.shape);
        single.push_back(take(bytes));
        copies += bytes;
      }
    }
    const bool apart = copied && copies < all.weights;
    hold(apart ? copies : all.weights);
    const auto narrow = problem_.runtime.kept.find("narrow_gradients");
    const double elements =
        static_cast<double>(all.gradients.value) / (problem_.runtime.gradient == DType::f32 ? 4 : 2);
    const Bytes beside{narrow == problem_.runtime.kept.end() ? 0
                                                             : static_cast<std::int64_t>(narrow->second * elements)};
    for (const Bytes b : {all.adapters, all.gradients, beside}) hold(b);
    for (const Buffer b : single) drop(b);
    if (!apart) return;
    hold_owned((all.weights - copies).value, 4);
  }

  /// Calls with what each trained weight of a slot has of `bytes`.
  template <class Call>
  void each_share(const Slot& slot, double bytes, const Call& call) const {
    double all = 0;
    const Block& block = program_.blocks[index(slot.block)];
    for (const Weight& w : block.weights)
      if (w.trained) all += static_cast<double>(w.shape.elements());
    for (const Weight& w : block.weights)
      if (w.trained) call(Bytes{static_cast<std::int64_t>(bytes * static_cast<double>(w.shape.elements()) / all)});
  }

  /// What one data rank owns of the flattened weights. Where gradients are reduced in one piece
  /// after the backward pass (no buckets), a rank owns a run of whole weights, the last layer's first; with buckets a
  /// part of every weight.
  void hold_owned(std::int64_t bytes, double of_element) {
    double all = 0;
    for (const Slot& s : program_.slots)
      for (const Weight& w : program_.blocks[index(s.block)].weights)
        if (w.trained && !w.adapter) all += static_cast<double>(w.shape.elements());
    const bool run = !problem_.runtime.overlap_reduce;
    double left = static_cast<double>(bytes);
    const double widest = run ? of_element : left / std::max(all, 1.0);
    for (auto s = program_.slots.rbegin(); s != program_.slots.rend(); ++s) {
      for (const Weight& w : program_.blocks[index(s->block)].weights) {
        if (!w.trained || w.adapter || left < 1) continue;
        const double piece = std::min(left, widest * static_cast<double>(w.shape.elements()));
        hold({static_cast<std::int64_t>(piece)});
        left -= piece;
      }
    }
    if (left >= 1) hold({static_cast<std::int64_t>(left)});
  }

  /// AdamW's moments, two per trained weight.
  void hold_moments() {
    const Runtime& runtime = problem_.runtime;
    std::int64_t owned = 0;
    for (const Slot& s : program_.slots) {
      if (runtime.distributed_optimizer && runtime.compute_copy)
        owned += s.state.optimizer.value;
      else
        for (int moment = 0; moment < 2; ++moment)
          each_share(s, static_cast<double>(s.state.optimizer.value) / 2, [&](Bytes b) { hold(b); });
    }
    const double each = runtime.moment == DType::f32 ? 4 : 2;
    if (owned > 0) hold_owned(owned / 2, each), hold_owned(owned - owned / 2, each);
  }

  /// Transformer Engine returns a cached stand-in for a gradient that went straight into the accumulated one: one per
  /// distinct shape (of an expert's matrix for grouped ones).
  void hold_stand_ins() {
    const auto per_element = problem_.runtime.kept.find("stand_in_gradient");
    if (per_element == problem_.runtime.kept.end()) return;
    std::set<std::pair<std::int64_t, std::int64_t>> shapes;
    for (const Block& block : program_.blocks) {
      for (const Weight& w : block.weights) {
        const bool projection = w.cls == WeightClass::attention || w.cls == WeightClass::dense ||
                                w.cls == WeightClass::shared || w.cls == WeightClass::experts;
        if (!w.trained || !projection || w.shape.rank < 2) continue;
        const auto rank = static_cast<std::size_t>(w.shape.rank);
        if (shapes.emplace(w.shape.dim[rank - 2], w.shape.dim[rank - 1]).second)
          hold({static_cast<std::int64_t>(per_element->second * static_cast<double>(w.shape.dim[rank - 2]) *
                                          static_cast<double>(w.shape.dim[rank - 1]))});
      }
    }
  }

  void play(const Instance& i) {
    switch (i.phase) {
      case Phase::gather:
        if (!fsdp_) gathered_[i.slot] = take(program_.slots[index(i.slot)].sharding.gathered, kGatherStream);
        break;
      case Phase::release:
        if (const auto it = gathered_.find(i.slot); it != gathered_.end()) drop(it->second), gathered_.erase(it);
        break;
      case Phase::forward:
        forward(i);
        break;
      case Phase::backward:
        backward(i);
        break;
      case Phase::forward_backward: {  // one after the other: the pair's own interleaving is within a block's buffers
        backward(i);
        Instance ahead = i;
        ahead.slot = i.forward_slot;
        ahead.micro_batch = i.forward_micro_batch;
        forward(ahead);
        break;
      }
      default:
        break;
    }
  }

  const Block& block_of(std::int32_t slot) const { return program_.blocks[index(program_.slots[index(slot)].block)]; }

  struct LastUse {
    std::vector<std::size_t> at;
    explicit LastUse(const Block& block, const std::vector<BlockNode>& nodes) : at(block.values.size(), 0) {
      for (std::size_t i = 0; i < nodes.size(); ++i)
        for (const auto* list : {&nodes[i].reads, &nodes[i].writes})
          for (const ValueId v : *list) at[index(block.alias[index(v)])] = i;
    }
  };

  /// Roots that collectives read or write. They run on a stream of their own, so the allocator gives these buffers out
  /// again only when the device has passed the collective (record_stream), and the host is ahead of it.
  std::vector<bool> on_the_wire(const Block& block, const std::vector<BlockNode>& nodes) const {
    std::vector<bool> out(block.values.size(), false);
    for (const BlockNode& node : nodes)
      if (std::holds_alternative<CommCall>(node.call))
        for (const auto* list : {&node.reads, &node.writes}) mark(block, out, *list);
    return out;
  }

  /// Freed by its last owner, to be had again once the next pass has been issued.
  void release(Buffer b) {
    if (buffers_.release(b)) waiting_.push_back(b);
  }

  /// FSDP2's gradients come in bf16; the blocks have them in fp32.
  Bytes bytes_of(const Block& block, ValueId root) const {
    const Bytes bytes = block.values[index(root)].bytes();
    const bool gradient = fsdp_ && block.category[index(root)] == MemoryCategory::gradients;
    return gradient ? Bytes{bytes.value / 2} : bytes;
  }

  /// Plays one pass; `live` maps a value's root to its buffer. What `stays` is left in it.
  void pass(const Block& block, const std::vector<BlockNode>& nodes, std::map<ValueId, Buffer>& live,
            const std::vector<bool>& stays) {
    const LastUse last(block, nodes);
    const std::vector<bool> travels = on_the_wire(block, nodes);
    const std::vector<Buffer> earlier = std::exchange(waiting_, {});
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      const OpCall* op = std::get_if<OpCall>(&nodes[n].call);
      // The model has returned before a loss that is not a part of it.
      const bool outside = op && std::holds_alternative<op::CrossEntropy>(op->op) && op->pass == Pass::forward;
      if (fsdp_ && outside && !problem_.runtime.kept.contains("chunked_head")) fsdp_->end_forward();
      const bool loss = loss_.plays(nodes[n]);
      if (loss) loss_.begin(nodes[n], micro_batch_);
      for (const ValueId w : nodes[n].writes) {
        const ValueId root = block.alias[index(w)];
        if (loss && ReplayLoss::stands_for_it(block.values[index(root)])) live.try_emplace(root, -1);
        if (!live.contains(root)) live[root] = take(bytes_of(block, root));
      }
      if (loss) loss_.end(nodes[n]);
      if (op) drop(take(workspace(op->op, op->pass, op->wants)));
      for (const auto* list : {&nodes[n].reads, &nodes[n].writes}) {
        for (const ValueId v : *list) {
          const ValueId root = block.alias[index(v)];
          const auto it = live.find(root);
          if (it == live.end() || last.at[index(root)] != n || stays[index(root)]) continue;
          if (travels[index(root)] && it->second >= 0)
            release(it->second);
          else
            drop(it->second);
          live.erase(it);
        }
      }
    }
    for (const Buffer b : earlier) drop(b);
  }

  void mark(const Block& block, std::vector<bool>& flags, const std::vector<ValueId>& ids) const {
    for (const ValueId v : ids)
      if (v >= 0) flags[index(block.alias[index(v)])] = true;
  }

  void forward(const Instance& i) {
    const Block& block = block_of(i.slot);
    const std::int32_t chunk = program_.slots[index(i.slot)].chunk, first = program_.chunks[index(chunk)].first;
    drop_held();
    std::map<ValueId, Buffer> live;
    if (!block.inputs.empty()) {
      const ValueId root = block.alias[index(block.inputs.front())];
      Buffer& stream = stream_[{chunk, i.micro_batch}];
      if (i.slot == first) stream = take(block.values[index(root)].bytes());
      live[root] = stream;
    }
    std::vector<bool> stays(block.values.size(), false), kept = stays;
    mark(block, stays, block.outputs);
    mark(block, kept, block.kept);
    for (std::size_t in = 1; in < block.inputs.size(); ++in) kept[index(block.alias[index(block.inputs[in])])] = false;
    for (std::size_t v = 0; v < kept.size(); ++v)
      if (kept[v]) stays[v] = true;
    micro_batch_ = i.micro_batch;
    if (fsdp_) fsdp_->unshard(i.slot, false);
    pass(block, block.forward, live, stays);
    if (fsdp_) fsdp_->reshard(i.slot, false);
    if (fsdp_ && i.slot + 1 == program_.chunks[index(chunk)].end) fsdp_->end_forward();
    auto& of_backward = kept_[{i.slot, i.micro_batch}];
    Buffer out = -1;
    const ValueId out_root = block.outputs.empty() ? -1 : block.alias[index(block.outputs.front())];
    for (const auto& [root, buffer] : live) {
      const bool leaves = root == out_root;
      if (leaves) out = buffer;
      if (kept[index(root)]) {
        if (leaves) buffers_.share(buffer);
        of_backward[root] = buffer;
      } else if (!leaves) {
        drop(buffer);
      }
    }
    stream_[{chunk, i.micro_batch}] = out;
    // The last slot's output leaves the stage (or is the loss); DeepSpeed's pipeline holds it to the backward pass.
    if (i.slot + 1 < program_.chunks[index(chunk)].end || problem_.runtime.kept.contains("stage_outputs")) return;
    drop(out), stream_[{chunk, i.micro_batch}] = -1;
  }

  void backward(const Instance& i) {
    const Block& block = block_of(i.slot);
    const std::int32_t first = program_.chunks[index(program_.slots[index(i.slot)].chunk)].first;
    // Gradients come to be in a step's first backward pass, unless they live in a buffer of their own.
    if (const auto [it, fresh] = gradients_.try_emplace(i.slot, -1);
        fresh && !fsdp_ && !problem_.runtime.distributed_optimizer)
      it->second = take(program_.slots[index(i.slot)].state.gradients);
    if (problem_.runtime.kept.contains("update_in_backward"))  // used and freed before the next layer's
      drop(gradients_[i.slot]), gradients_[i.slot] = -1;
    std::map<ValueId, Buffer> live = std::move(kept_[{i.slot, i.micro_batch}]);
    kept_.erase({i.slot, i.micro_batch});
    for (std::size_t o = 0; o < block.output_grads.size(); ++o) {
      if (block.output_grads[o] < 0) continue;
      const ValueId root = block.alias[index(block.output_grads[o])];
      if (o == 0 && gradient_ >= 0)
        live[root] = gradient_, gradient_ = -1;
      else if (!live.contains(root))
        live[root] = take(block.values[index(root)].bytes());
    }
    std::vector<bool> stays(block.values.size(), false);
    mark(block, stays, block.input_grads);
    mark(block, stays, block.weight_grads);
    const bool holds = plan_.recompute == Recompute::full && problem_.runtime.kept.contains("held_checkpoint");
    if (holds && !block.inputs.empty())
      if (const auto it = live.find(block.alias[index(block.inputs.front())]); it != live.end())
        hold_to_end(it->second);
    micro_batch_ = i.micro_batch;
    if (fsdp_) fsdp_->unshard(i.slot, true);
    pass(block, block.backward, live, stays);
    if (fsdp_) fsdp_->reshard(i.slot, true);
    drop_unreduced();
    const ValueId in_root =
        block.input_grads.empty() || block.input_grads.front() < 0 ? -1 : block.alias[index(block.input_grads.front())];
    std::vector<bool> weight(block.values.size(), false);
    mark(block, weight, block.weight_grads);
    for (const auto& [root, buffer] : live) {
      if (root == in_root && holds) hold_to_end(buffer);
      if (root == in_root && i.slot > first)
        gradient_ = buffer;
      else if (weight[index(root)])
        unreduced_.push_back(buffer);
      else
        drop(buffer);
    }
    if (i.slot == first) {
      drop(std::exchange(gradient_, -1));
      drop(std::exchange(stream_[{program_.slots[index(i.slot)].chunk, i.micro_batch}], -1));
    }
    if (!fsdp_) return;
    fsdp_->reduce(i.slot, unreduced_);
    const bool more = std::any_of(program_.slots.begin() + first, program_.slots.begin() + i.slot,
                                  [&](const Slot& s) { return !program_.blocks[index(s.block)].backward.empty(); });
    if (!more) fsdp_->end_backward();
  }

  /// The backward pass of a micro-batch is over.
  void drop_held() { buffers_.drop_all(held_); }

  void hold_to_end(Buffer b) {
    if (b < 0) return;
    buffers_.share(b);
    held_.push_back(b);
  }

  void drop_unreduced() { buffers_.drop_all(unreduced_); }

  const Program& program_;
  const Problem& problem_;
  const Plan& plan_;
  ReplayBuffers buffers_;
  ReplayLoss loss_;
  std::optional<ReplayFsdp> fsdp_;
  std::int32_t micro_batch_ = 0;  ///< of the pass that is played
  std::map<std::int32_t, Buffer> gathered_, gradients_;
  std::map<std::pair<std::int32_t, std::int32_t>, Buffer> stream_;  ///< by chunk and micro-batch
  std::map<std::pair<std::int32_t, std::int32_t>, std::map<ValueId, Buffer>> kept_;
  std::vector<Buffer> waiting_;           ///< released, still of use to a collective as far as the host knows
  std::vector<Buffer> unreduced_, held_;  ///< held_: to the end of a micro-batch's backward pass
  Buffer gradient_ = -1;
};

}  // namespace

ReplayedPeak replay(const Program& program, const Problem& problem, const Plan& plan,
                    CachingAllocator::Options options) {
  return Replay(program, problem, plan, options).run();
}

}  // namespace moeplan
