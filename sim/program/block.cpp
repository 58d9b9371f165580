#include "sim/program/block.hpp"

#include <algorithm>
#include <cassert>
#include <map>

#include "sim/program/call_kinds.hpp"
#include "sim/program/context_steps.hpp"
#include "sim/program/host_steps.hpp"

namespace moeplan {
namespace {

class Differentiator {
 public:
  Differentiator(Graph graph, Recompute recompute, bool split, bool offload) : recompute_(recompute), split_(split), offload_(offload) {
    block_.name = std::move(graph.name);
    block_.values = std::move(graph.values);
    block_.weights = std::move(graph.weights);
    block_.inputs = std::move(graph.inputs);
    block_.outputs = std::move(graph.outputs);
    nodes_ = std::move(graph.nodes);
    block_.values.reserve(4 * block_.values.size());   // gradients and recomputed copies
    block_.category.reserve(block_.values.capacity());
    block_.alias.reserve(block_.values.capacity());
    block_.forward.reserve(nodes_.size());
    block_.backward.reserve(3 * nodes_.size());
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
    if (offload_) for (const auto& [v, returned] : move_kept(block_)) current_[index(v)] = returned;
    const std::size_t returns = block_.backward.size();
    emit_backward();
    order_returns(block_, returns);
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
    out.writes = std::move(writes);
    if (const Op* op = std::get_if<Op>(&n.call); op && !n.summary) bind_operands(*op, out);
    for (const ValueId v : n.also) out.reads.push_back(v);   // always kept: the same value in both passes
    out.recompute = recompute;
    to.push_back(std::move(out));
  }

  /// Operands of a forward call from what it reads and writes.
  static void bind_operands(const Op& op, BlockNode& node) {
    node.operands.clear();
    std::size_t next_in = 0, next_out = 0;
    for (const Operand& o : operands(op)) {
      if (o.role == Role::weight) node.operands.push_back(-1);
      else if (o.role == Role::input || o.role == Role::index) node.operands.push_back(node.reads[next_in++]);
      else node.operands.push_back(node.writes[next_out++]);
    }
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
    // Each tensor rank keeps its share of the sequence; what was gathered is gathered again (Korthikanti et al. 2022, section 4.2.2).
    if (const CommCall* comm = std::get_if<CommCall>(&nodes_[index(p)].call); comm && comm->collective == Collective::all_gather && comm->group == Group::tensor) return false;
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
    const ValueId sum = gradient_value(v);
    add_values(grad - 1, contribution, sum, block_.backward);
    grad = sum + 1;
  }

  void add_values(ValueId a, ValueId b, ValueId sum, std::vector<BlockNode>& calls) {
    const Shape s = value(sum).shape;
    const std::int64_t width = s.rank ? std::max<std::int64_t>(s[s.rank - 1], 1) : 1;
    op::Add add{};
    add.tokens = s.elements() / width;
    add.hidden = width;
    calls.push_back({.call = OpCall{add, Pass::forward, {}}, .reads = {a, b}, .writes = {sum}, .weights = {}});
    bind_operands(add, calls.back());
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
    const Operands contract = operands(std::get<Op>(n.call));
    const auto pass_node = [&](Wants wants) {
      BlockNode made{.call = OpCall{std::get<Op>(n.call), Pass::backward, wants}, .reads = {}, .writes = {}, .weights = n.weights};
      made.operands.assign(contract.size(), -1);
      made.gradients.assign(contract.size(), -1);
      std::size_t next_in = 0, next_out = 0;
      for (std::size_t o = 0; o < contract.size(); ++o) {
        if (contract[o].role == Role::weight) continue;
        const ValueId v = (contract[o].role == Role::input || contract[o].role == Role::index) ? n.inputs[next_in++] : n.outputs[next_out++];
        if (needed(contract[o].need, wants)) made.reads.push_back(made.operands[o] = obtain(v));
      }
      next_out = 0;
      for (std::size_t o = 0; o < contract.size(); ++o) {
        if (contract[o].role != Role::output && contract[o].role != Role::aux) continue;
        if (const auto it = grads_.find(n.outputs[next_out++]); it != grads_.end()) made.reads.push_back(made.gradients[o] = it->second - 1);
      }
      return made;
    };
    BlockNode node = pass_node(now), later;
    if (split) later = pass_node({false, true});
    std::vector<std::pair<ValueId, ValueId>> contributions;
    std::vector<std::pair<WeightId, ValueId>> sums;   // second uses of a weight in this block
    std::vector<ValueId> of_input, of_weight;   // gradients by input, -1 where none is wanted; of trained weights
    std::size_t next_weight = 0;
    for (std::size_t o = 0; o < contract.size(); ++o) {
      const Role role = contract[o].role;
      if (role == Role::input || role == Role::index) {
        const ValueId in = n.inputs[of_input.size()];
        of_input.push_back(-1);
        if (role == Role::index || !carries_[index(in)]) continue;
        node.writes.push_back(of_input.back() = node.gradients[o] = gradient_value(in));
        contributions.emplace_back(in, node.gradients[o]);
      } else if (role == Role::weight) {
        const WeightId w = n.weights[next_weight++];
        const Weight& weight = block_.weights[index(w)];
        if (!weight.trained) continue;
        const ValueId g = add_value({.name = "d " + weight.name, .shape = weight.shape, .dtype = DType::f32, .differentiable = false}, MemoryCategory::gradients);
        BlockNode& writer = split ? later : node;
        writer.writes.push_back(writer.gradients[o] = g);
        of_weight.push_back(g);
        if (block_.weight_grads[index(w)] < 0) block_.weight_grads[index(w)] = g;
        else sums.emplace_back(w, g);
      }
    }
    if (n.context == ContextWork::ring && wants_[i].input_grad) {
      ring_backward(block_, n, n.exchange.rows, wants_[i], node.reads, of_input, of_weight, block_.backward);
      for (const auto& [in, g] : contributions) accumulate(in, g);
    } else {
      Edges edges;
      if (n.context != ContextWork::none) edges = read_also(n, of_input, node);
      if (split) block_.weight_backward.push_back(std::move(later));
      if (!split || now.input_grad) input_backward(n, std::move(node), contributions, edges);
    }
    for (const auto& [w, g] : sums) {
      const Value& part = value(g);
      const ValueId sum = add_value({.name = part.name, .shape = part.shape, .dtype = part.dtype, .differentiable = false}, MemoryCategory::gradients);
      add_values(block_.weight_grads[index(w)], g, sum, split ? block_.weight_backward : block_.backward);
      block_.weight_grads[index(w)] = sum;
    }
  }

  /// Gradients of the rows before this rank's runs, and of the inputs that they belong to.
  struct Edges {
    std::vector<ValueId> before, inputs;
  };

  /// Lets a backward call read what its forward call read from other context ranks, and write the gradients of those rows.
  Edges read_also(const GraphNode& n, const std::vector<ValueId>& of_input, BlockNode& node) {
    Edges out;
    if (n.context == ContextWork::state) {
      const ValueId behind = state_backward(block_, n, node.reads, block_.backward);
      node.reads.insert(node.reads.end(), {n.also.front(), behind});
    } else if (n.context == ContextWork::halo) {
      node.reads.insert(node.reads.end(), n.also.begin(), n.also.end());
      for (std::size_t a = 0; a < n.also.size(); ++a) {
        const ValueId g = of_input[index(n.also_first) + a];
        if (g < 0) continue;
        out.before.push_back(add_like(block_, n.also[a], "d " + value(n.also[a]).name));
        out.inputs.push_back(g);
      }
      node.writes.insert(node.writes.end(), out.before.begin(), out.before.end());
    }
    return out;
  }

  void input_backward(const GraphNode& n, BlockNode node, std::vector<std::pair<ValueId, ValueId>>& contributions, const Edges& edges) {
    // The gradients of views are pieces of the gradient of what they view.
    if (is_view(n)) for (const ValueId piece : arriving(n)) if (block_.alias[index(piece)] == piece) block_.alias[index(piece)] = node.writes.front();
    block_.backward.push_back(std::move(node));
    if (!edges.before.empty()) {
      const std::vector<ValueId> whole = halo_backward(block_, n, edges.before, edges.inputs, block_.backward);
      for (auto& [in, g] : contributions)
        if (const auto at = std::find(edges.inputs.begin(), edges.inputs.end(), g); at != edges.inputs.end()) g = whole[static_cast<std::size_t>(at - edges.inputs.begin())];
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

  Recompute recompute_;
  bool split_;
  bool offload_;
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
