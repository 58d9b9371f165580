#include "sim/program/context_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <map>

namespace moeplan {
namespace {

bool is_view(const GraphNode& node) {
  const Op* op = std::get_if<Op>(&node.call);
  return node.in_place || (op && moeplan::is_view(*op));
}

/// A plain sum: the gradient of both inputs is the gradient of the output itself, and nothing runs backward.
bool is_sum(const Op& op) {
  const op::Add* add = std::get_if<op::Add>(&op);
  return add && add->scale == 1;
}

/// Calls that read and write a few bytes an element and nothing else: repeating them costs less than keeping their output.
bool is_cheap(std::string_view kind) {
  static constexpr std::array names{"rms_norm", "gated_rms_norm", "layer_norm", "glu", "activation", "add", "mul_gate", "rope", "split", "short_conv", "attention_residual", "hyper_expand", "hyper_pre", "hyper_post"};
  return std::find(names.begin(), names.end(), kind) != names.end();
}

/// Products whose weight gradient may wait. Source: Qi et al. 2024; norms and biases make theirs with the input gradient.
bool may_wait(std::string_view kind) { return kind == "linear" || kind == "grouped_linear"; }

/// Routing decisions are always kept: a recomputed router could pick other experts.
bool is_routing(std::string_view kind) { return kind == "router" || kind == "indexer"; }

Lane lane_of(const CommCall& comm) {
  switch (comm.group) {
    case Group::expert: case Group::expert_tensor: case Group::tensor: case Group::context: return Lane::expert_communication;
    default: return Lane::data_communication;
  }
}

Collective reversed(Collective c) {
  switch (c) {
    case Collective::all_gather: return Collective::reduce_scatter;
    case Collective::reduce_scatter: return Collective::all_gather;
    case Collective::dispatch: return Collective::combine;
    case Collective::combine: return Collective::dispatch;
    default: return c;
  }
}

class Differentiator {
 public:
  Differentiator(Graph graph, Recompute recompute, bool split, bool offload) : recompute_(recompute), split_(split), offload_(offload) {
    block_.name = std::move(graph.name);
    block_.values = std::move(graph.values);
    block_.weights = std::move(graph.weights);
    block_.inputs = std::move(graph.inputs);
    block_.outputs = std::move(graph.outputs);
    nodes_ = std::move(graph.nodes);
    block_.forward_values = block_.values.size();
    for (std::size_t i = 0; i < block_.values.size(); ++i) {
      block_.alias.push_back(static_cast<ValueId>(i));
      block_.category.push_back(block_.values[i].dispatch_buffer ? MemoryCategory::dispatch_buffers : MemoryCategory::activations);
    }
    for (const GraphNode& n : nodes_)
      if (is_view(n)) for (const ValueId out : n.outputs) block_.alias[index(out)] = block_.alias[index(n.inputs.front())];
    current_.resize(block_.values.size());
    for (std::size_t i = 0; i < current_.size(); ++i) current_[i] = static_cast<ValueId>(i);
  }

  Block run(bool needs_input_grad) {
    for (const GraphNode& n : nodes_) emit_forward(n, n.inputs, n.outputs, false, block_.forward);
    find_wanted(needs_input_grad);
    choose_kept();
    if (offload_) move_kept();
    emit_backward();
    if (offload_) order_returns();
    find_put_off();
    return std::move(block_);
  }

 private:
  static std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }
  const Value& value(ValueId id) const { return block_.values[index(id)]; }

  static BlockNode forward_node(const GraphNode& n) {
    BlockNode out{.call = HostWait{}, .reads = n.inputs, .writes = n.outputs, .weights = n.weights, .summary = n.summary};
    if (const Op* op = std::get_if<Op>(&n.call)) out.call = OpCall{*op, Pass::forward, {}};
    else if (const CommCall* comm = std::get_if<CommCall>(&n.call)) { out.call = *comm; out.lane = lane_of(*comm); }
    return out;
  }

  /// A forward call on these values, written out where other context ranks take part.
  void emit_forward(const GraphNode& n, std::vector<ValueId> reads, std::vector<ValueId> writes, bool recompute, std::vector<BlockNode>& to) {
    if (n.context == ContextWork::ring) {
      ring_forward(block_, n, n.exchange.rows, reads, writes, recompute, to);
      return;
    }
    BlockNode out = forward_node(n);
    out.reads = std::move(reads);
    for (const ValueId v : n.also) out.reads.push_back(v);   // always kept: the same value in both passes
    out.writes = std::move(writes);
    out.recompute = recompute;
    to.push_back(std::move(out));
  }

  ValueId add_value(Value v, MemoryCategory category) {
    block_.values.push_back(std::move(v));
    block_.category.push_back(category);
    block_.alias.push_back(static_cast<ValueId>(block_.values.size() - 1));
    return block_.alias.back();
  }

  /// Which values carry a gradient, and what each node's backward call is asked for.
  void find_wanted(bool needs_input_grad) {
    carries_.assign(block_.values.size(), false);
    for (const ValueId in : block_.inputs) carries_[index(in)] = needs_input_grad && value(in).differentiable;
    std::vector<bool> reaches(block_.values.size(), false);  // does a gradient arrive from the outputs?
    wants_.resize(nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const GraphNode& n = nodes_[i];
      bool from_inputs = false, trains = false;
      for (const ValueId in : n.inputs) from_inputs |= carries_[index(in)];
      for (const WeightId w : n.weights) trains |= block_.weights[index(w)].trained;
      wants_[i] = {from_inputs, trains};
      if (from_inputs || trains) for (const ValueId out : n.outputs) carries_[index(out)] = value(out).differentiable;
    }
    for (const ValueId out : block_.outputs) reaches[index(out)] = carries_[index(out)];
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      bool any = false;
      for (const ValueId out : nodes_[i].outputs) any |= reaches[index(out)] && carries_[index(out)];
      if (!any) { wants_[i] = {false, false}; continue; }
      for (const ValueId in : nodes_[i].inputs) if (carries_[index(in)]) reaches[index(in)] = true;
    }
  }

  /// Forward operands that the backward call of node i reads, as value ids.
  std::vector<ValueId> backward_operands(std::size_t i) const { return backward_operands(i, wants_[i]); }
  std::vector<ValueId> backward_operands(std::size_t i, Wants wants) const {
    std::vector<ValueId> out;
    const Op* op = std::get_if<Op>(&nodes_[i].call);
    if (!op) return out;
    std::size_t next_in = 0, next_out = 0;
    for (const Operand& o : operands(*op)) {
      if (o.role == Role::weight) continue;
      const ValueId v = (o.role == Role::input || o.role == Role::index) ? nodes_[i].inputs[next_in++] : nodes_[i].outputs[next_out++];
      if (needed(o.need, wants)) out.push_back(v);
    }
    return out;
  }

  bool may_keep(ValueId v) const {
    const std::int32_t p = value(v).producer;
    if (p < 0 || value(v).always_kept) return true;
    const Op* op = std::get_if<Op>(&nodes_[index(p)].call);
    if (op && is_routing(kind(*op)) && !value(v).differentiable) return true;
    if (recompute_ == Recompute::none) return true;
    if (recompute_ == Recompute::full) return false;
    return !(op && is_cheap(kind(*op)));
  }

  void demand(ValueId v, std::vector<bool>& kept, std::vector<bool>& seen) {
    if (seen[index(v)]) return;
    seen[index(v)] = true;
    if (may_keep(v)) { kept[index(v)] = true; return; }
    const GraphNode& n = nodes_[index(value(v).producer)];
    for (const auto* list : {&n.inputs, &n.also})
      for (const ValueId in : *list) demand(in, kept, seen);
  }

  void choose_kept() {
    std::vector<bool> kept(block_.forward_values, false), seen(block_.forward_values, false);
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (wants_[i].input_grad || wants_[i].weight_grad)
        for (const auto& list : {backward_operands(i), nodes_[i].also})
          for (const ValueId v : list) demand(v, kept, seen);
    available_.assign(block_.forward_values, false);
    for (std::size_t v = 0; v < kept.size(); ++v) {
      if (!kept[v]) continue;
      available_[v] = true;
      block_.kept.push_back(static_cast<ValueId>(v));
    }
  }

  /// Makes a forward value readable in the backward pass; returns its id there.
  ValueId obtain(ValueId v) {
    if (available_[index(v)]) return current_[index(v)];
    const std::int32_t p = value(v).producer;
    assert(p >= 0 && "a block input that backward needs was not kept");
    const GraphNode& n = nodes_[index(p)];
    std::vector<ValueId> reads = n.inputs, writes = n.outputs;
    for (ValueId& in : reads) in = obtain(in);
    for (ValueId& out : writes) {
      const ValueId original = out;
      Value copy = value(original);
      copy.name += " (recomputed)";
      out = add_value(std::move(copy), block_.category[index(original)]);
      if (is_view(n)) block_.alias[index(out)] = block_.alias[index(reads.front())];
      if (!available_[index(original)]) { available_[index(original)] = true; current_[index(original)] = out; }
    }
    emit_forward(n, std::move(reads), std::move(writes), true, block_.backward);
    return current_[index(v)];
  }

  ValueId gradient_value(ValueId v) {
    Value g = value(v);
    g.name = "d " + g.name;
    g.differentiable = false;
    return add_value(std::move(g), block_.category[index(v)]);
  }

  /// Adds `contribution` to the gradient of `v`.
  void accumulate(ValueId v, ValueId contribution) {
    ValueId& grad = grads_[v];
    if (grad == 0) { grad = contribution + 1; return; }
    const Shape s = value(v).shape;
    const std::int64_t width = s.rank ? std::max<std::int64_t>(s[s.rank - 1], 1) : 1;
    const ValueId sum = gradient_value(v);
    op::Add add{};
    add.tokens = s.elements() / width;
    add.hidden = width;
    block_.backward.push_back({.call = OpCall{add, Pass::forward, {}}, .reads = {grad - 1, contribution}, .writes = {sum}, .weights = {}});
    grad = sum + 1;
  }

  void emit_backward() {
    for (const ValueId out : block_.outputs) {
      const bool has = carries_[index(out)];
      const ValueId g = has ? gradient_value(out) : -1;
      block_.output_grads.push_back(g);
      if (has) accumulate(out, g);
    }
    block_.weight_grads.assign(block_.weights.size(), -1);
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (!wants_[i].input_grad && !wants_[i].weight_grad) continue;
      if (std::holds_alternative<Op>(nodes_[i].call)) backward_op(i);
      else if (std::holds_alternative<CommCall>(nodes_[i].call)) backward_comm(i);
    }
    for (const ValueId in : block_.inputs) {
      const auto it = grads_.find(in);
      block_.input_grads.push_back(it == grads_.end() ? -1 : it->second - 1);
    }
  }

  std::vector<ValueId> arriving(const GraphNode& n) const {
    std::vector<ValueId> out;
    for (const ValueId v : n.outputs)
      if (const auto it = grads_.find(v); it != grads_.end()) out.push_back(it->second - 1);
    return out;
  }

  void backward_op(std::size_t i) {
    const GraphNode& n = nodes_[i];
    if (is_sum(std::get<Op>(n.call))) {
      const ValueId arrived = arriving(n).front();
      for (const ValueId in : n.inputs) if (carries_[index(in)]) accumulate(in, arrived);
      return;
    }
    const bool split = split_ && wants_[i].weight_grad && may_wait(kind(std::get<Op>(n.call)));
    const Wants now = split ? Wants{wants_[i].input_grad, false} : wants_[i];
    const auto pass_node = [&](Wants wants) {
      BlockNode made{.call = OpCall{std::get<Op>(n.call), Pass::backward, wants}, .reads = {}, .writes = {}, .weights = n.weights};
      for (const ValueId v : backward_operands(i, wants)) made.reads.push_back(obtain(v));
      for (const ValueId g : arriving(n)) made.reads.push_back(g);
      return made;
    };
    BlockNode node = pass_node(now), later;
    if (split) later = pass_node({false, true});
    std::vector<std::pair<ValueId, ValueId>> contributions;
    std::vector<ValueId> of_input, weight_gradients;   // gradients by input, -1 where none is wanted
    for (const ValueId in : n.inputs) {
      of_input.push_back(carries_[index(in)] ? gradient_value(in) : -1);
      if (of_input.back() < 0) continue;
      node.writes.push_back(of_input.back());
      contributions.emplace_back(in, of_input.back());
    }
    for (const WeightId w : n.weights) {
      const Weight& weight = block_.weights[index(w)];
      if (!weight.trained || block_.weight_grads[index(w)] >= 0) continue;
      const ValueId g = add_value({.name = "d " + weight.name, .shape = weight.shape, .dtype = DType::f32, .differentiable = false}, MemoryCategory::gradients);
      block_.weight_grads[index(w)] = g;
      (split ? later : node).writes.push_back(g);
      weight_gradients.push_back(g);
    }
    if (n.context == ContextWork::ring && wants_[i].input_grad) {
      ring_backward(block_, n, n.exchange.rows, wants_[i], node.reads, of_input, weight_gradients, block_.backward);
      for (const auto& [in, g] : contributions) accumulate(in, g);
      return;
    }
    if (n.context == ContextWork::state) {
      const ValueId behind = state_backward(block_, n, node.reads, block_.backward);
      node.reads.insert(node.reads.end(), {n.also.front(), behind});
    }
    std::vector<ValueId> edges, completed;   // gradients of the rows before this rank's runs, and of the inputs they belong to
    if (n.context == ContextWork::halo) {
      node.reads.insert(node.reads.end(), n.also.begin(), n.also.end());
      for (std::size_t a = 0; a < n.also.size(); ++a) {
        const ValueId g = of_input[index(n.also_first) + a];
        if (g < 0) continue;
        edges.push_back(add_like(block_, n.also[a], "d " + value(n.also[a]).name));
        completed.push_back(g);
      }
      node.writes.insert(node.writes.end(), edges.begin(), edges.end());
    }
    if (split) block_.weight_backward.push_back(std::move(later));
    if (split && !now.input_grad) return;
    // The gradients of views are pieces of the gradient of what they view.
    if (is_view(n)) for (const ValueId piece : arriving(n)) if (block_.alias[index(piece)] == piece) block_.alias[index(piece)] = node.writes.front();
    block_.backward.push_back(std::move(node));
    if (!edges.empty()) {
      const std::vector<ValueId> whole = halo_backward(block_, n, edges, completed, block_.backward);
      for (auto& [in, g] : contributions)
        if (const auto at = std::find(completed.begin(), completed.end(), g); at != completed.end()) g = whole[static_cast<std::size_t>(at - completed.begin())];
    }
    for (const auto& [in, g] : contributions) accumulate(in, g);
  }

  /// What the split-off calls read, and gradients made before them: reductions come when all of a slot's are there.
  void find_put_off() {
    if (block_.weight_backward.empty()) return;
    std::vector<bool> listed(block_.values.size(), false);
    const auto put = [&](ValueId v) {
      if (listed[index(v)]) return;
      listed[index(v)] = true;
      block_.put_off.push_back(v);
    };
    for (const BlockNode& n : block_.weight_backward) for (const ValueId v : n.reads) put(v);
    for (const BlockNode& n : block_.backward)
      for (const ValueId v : n.writes)
        if (std::find(block_.weight_grads.begin(), block_.weight_grads.end(), v) != block_.weight_grads.end()) put(v);
  }

  void backward_comm(std::size_t i) {
    const GraphNode& n = nodes_[i];
    if (n.forward_only) { accumulate(n.inputs.front(), arriving(n).front()); return; }
    CommCall comm = std::get<CommCall>(n.call);
    comm.collective = reversed(comm.collective);
    if (comm.back.value > 0) std::swap(comm.payload, comm.back);
    const ValueId g = gradient_value(n.inputs.front());
    if (n.in_place) block_.alias[index(g)] = block_.alias[index(arriving(n).front())];
    block_.backward.push_back({.call = comm, .lane = lane_of(comm), .reads = arriving(n), .writes = {g}, .weights = {}});
    accumulate(n.inputs.front(), g);
  }

  /// Large kept values leave for the host after the call that made them; the backward pass starts with their return.
  void move_kept() {
    std::vector<ValueId> stays;
    std::vector<std::size_t> made(block_.values.size(), 0);   // 1 + position of the call after which the memory is complete
    for (std::size_t i = 0; i < block_.forward.size(); ++i)
      for (const ValueId w : block_.forward[i].writes) made[index(block_.alias[index(w)])] = i + 1;
    std::vector<std::pair<std::size_t, BlockNode>> leaving;
    std::map<ValueId, std::size_t> back;   // memory -> the copy by which it returns
    for (const ValueId v : block_.kept) {
      const ValueId root = block_.alias[index(v)];
      const bool carried = std::find(block_.inputs.begin() + (block_.inputs.empty() ? 0 : 1), block_.inputs.end(), root) != block_.inputs.end();
      if (value(root).bytes() < kOffloaded || value(v).always_kept || carried) { stays.push_back(v); continue; }
      const auto [it, fresh] = back.try_emplace(root, block_.backward.size());
      if (fresh) {
        const CommCall out{.collective = Collective::to_host, .group = Group::world, .payload = value(root).bytes()};
        leaving.emplace_back(made[index(root)], BlockNode{.call = out, .lane = Lane::copy, .reads = {root}, .writes = {}, .weights = {}});
        const ValueId returned = add_like(block_, root, value(root).name + " (returned)");
        block_.host += out.payload;
        CommCall in = out;
        in.collective = Collective::from_host;
        block_.backward.push_back({.call = in, .lane = Lane::copy, .reads = {}, .writes = {returned}, .weights = {}});
      }
      std::vector<ValueId>& writes = block_.backward[it->second].writes;
      current_[index(v)] = v == root ? writes.front() : add_like(block_, v, value(v).name + " (returned)", writes.front());
      if (v != root) writes.push_back(current_[index(v)]);
    }
    returns_ = block_.backward.size();
    block_.kept = std::move(stays);
    std::stable_sort(leaving.begin(), leaving.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (auto& [after, node] : leaving) block_.forward.insert(block_.forward.begin() + static_cast<std::ptrdiff_t>(after), std::move(node));
  }

  /// Returns come in the order of their first reader.
  void order_returns() {
    std::vector<std::size_t> first(block_.values.size(), block_.backward.size());
    for (std::size_t i = block_.backward.size(); i-- > returns_;)
      for (const ValueId r : block_.backward[i].reads) first[index(block_.alias[index(r)])] = i;
    const auto reader = [&](const BlockNode& n) { return first[index(block_.alias[index(n.writes.front())])]; };
    std::stable_sort(block_.backward.begin(), block_.backward.begin() + static_cast<std::ptrdiff_t>(returns_), [&](const BlockNode& a, const BlockNode& b) { return reader(a) < reader(b); });
  }

  Recompute recompute_;
  bool split_;
  bool offload_;
  std::size_t returns_ = 0;   ///< copies from the host at the head of the backward pass
  Block block_;
  std::vector<GraphNode> nodes_;
  std::vector<bool> carries_, available_;
  std::vector<Wants> wants_;
  std::vector<ValueId> current_;
  std::map<ValueId, ValueId> grads_;  // forward value -> id of its gradient + 1
};

}  // namespace

Block differentiate(Graph graph, Recompute recompute, bool needs_input_grad, bool split, bool offload) {
  return Differentiator(std::move(graph), recompute, split, offload).run(needs_input_grad);
}

}  // namespace moeplan
