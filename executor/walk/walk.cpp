#include "executor/walk/walk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/walk/packing.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Columns of piece `which` of a split, in a row of what it splits.
std::vector<std::int32_t> piece_columns(const op::Split& op, std::size_t which) {
  const std::array widths{op.first, op.second, op.third, op.fourth};
  const std::int64_t group = op.first + op.second + op.third + op.fourth;
  std::int64_t begin = 0;
  std::size_t piece = 0, at = 0;
  for (; at < widths.size(); ++at) {
    if (widths[at] == 0) continue;
    if (piece++ == which) break;
    begin += widths[at];
  }
  std::vector<std::int32_t> out;
  for (std::int64_t g = 0; g < op.groups; ++g)
    for (std::int64_t c = 0; c < widths[at]; ++c) out.push_back(static_cast<std::int32_t>(g * group + begin + c));
  return out;
}

std::int64_t split_columns(const op::Split& op) { return op.groups * (op.first + op.second + op.third + op.fourth); }

}  // namespace

Walk::Walk(const Program& program, const Problem& problem, const Plan& plan, Parameters& parameters, Backend& backend, const WalkOptions& options)
    : program_(program), problem_(problem), plan_(plan), parameters_(parameters), backend_(backend), options_(options) {
  if (plan.parallelism.world() != 1)
    throw InputError("plan.parallelism", fmt::format("is for {} ranks; this executor runs one", plan.parallelism.world()), "plan for one device (--gpus 1)");
  if (plan.offload != Offload::none) throw InputError("plan.offload", fmt::format("{} is priced, not run", name_of(plan.offload)), "none");
  if (plan.experts.capacity_factor && options.capacity_factor == 0) {
    if (plan.experts.overflow != Overflow::drop_position) throw InputError("plan.experts.overflow", fmt::format("{} is priced, not run", name_of(plan.experts.overflow)), "drop_position");
    options_.capacity_factor = *plan.experts.capacity_factor;
  }
  for (const Block& b : program.blocks) {
    for (const auto* pass : {&b.forward, &b.backward})
      for (const BlockNode& n : *pass) {
        const OpCall* call = std::get_if<OpCall>(&n.call);
        if (!call) throw InputError(b.name, "has communication, but there is one rank");
        if (!backend.runs(call->op)) throw InputError(std::string(kind(call->op)), fmt::format("cannot run on the {} backend", backend.name()), "`moeplan ops` lists what each operator has");
      }
    note_block(b);
  }
  arena_ = plan_arena(program, problem, [&](DType t, const Shape& s) { return Bytes{plain_bytes(backend.held(t)) * s.elements()}; });
  memory_ = backend.allocate(arena_.size, "arena");
  const std::int64_t tokens = plan.micro_batch * problem.workload.sequence_length;
  if (tokens > (1 << 24)) throw InputError("plan.micro_batch", fmt::format("{} tokens in a micro-batch; row numbers are exact up to 2^24", tokens), "a smaller micro-batch or sequence");
  outside_ = backend.allocate({24 * tokens + 64}, "labels and boundaries");
  cast_.assign(program.slots.size(), -1);
  kept_rows_.resize(program.slots.size());
  router_at_.resize(program.slots.size());
}

void Walk::note_block(const Block& b) {
  BlockNotes notes;
  notes.columns.resize(b.values.size());
  notes.root_columns.resize(b.values.size(), 0);
  const auto is_split = [](const BlockNode& n) { const OpCall* c = std::get_if<OpCall>(&n.call); return c ? std::get_if<op::Split>(&c->op) : nullptr; };
  const auto view = [&](ValueId out, ValueId base, const op::Split& op, std::size_t which) {
    std::vector<std::int32_t> columns = piece_columns(op, which);
    const auto& of_base = notes.columns[index(base)];
    if (!of_base.empty()) for (std::int32_t& c : columns) c = of_base[index(c)];
    notes.columns[index(out)] = std::move(columns);
    notes.root_columns[index(out)] = of_base.empty() ? split_columns(op) : notes.root_columns[index(base)];
  };
  std::map<WeightId, std::size_t> router_of;   // by the experts' weights
  std::size_t routers = 0;
  const auto routed = [&](const BlockNode& n, bool learn) -> RoutedCall {
    const OpCall* c = std::get_if<OpCall>(&n.call);
    if (!c) return {};
    if (std::holds_alternative<op::Router>(c->op)) {
      if (learn) router_of[n.weights.front()] = routers++;
      return {router_of.at(n.weights.front()), true};
    }
    if (std::holds_alternative<op::GroupedLinear>(c->op)) {
      if (learn) router_of[n.weights.front()] = routers - 1;
      return {router_of.at(n.weights.front()), true};
    }
    return {};
  };
  for (const BlockNode& n : b.forward) {
    if (const op::Split* split = is_split(n))
      for (std::size_t w = 0; w < n.writes.size(); ++w) view(n.writes[w], n.reads.front(), *split, w);
    notes.forward.push_back(routed(n, true));
  }
  for (const BlockNode& n : b.backward) {
    notes.backward.push_back(routed(n, false));
    const op::Split* split = is_split(n);
    if (!split) continue;
    if (n.recompute) {
      for (std::size_t w = 0; w < n.writes.size(); ++w) view(n.writes[w], n.reads.front(), *split, w);
      continue;
    }
    for (std::size_t o = 1; o < n.gradients.size(); ++o)
      if (const ValueId g = n.gradients[o]; g >= 0 && b.alias[index(g)] == n.writes.front() && notes.columns[index(g)].empty()) view(g, n.writes.front(), *split, o - 1);
  }
  // A gradient that is a piece of a piece would lie in two buffers.
  for (std::size_t v = b.forward_values; v < b.values.size(); ++v)
    if (b.alias[index(b.alias[v])] != b.alias[v]) throw std::logic_error("a view of a view among the gradients of " + b.name);
  notes_.push_back(std::move(notes));
}

TensorView Walk::buffer_view(std::int32_t buffer, DType type, const Shape& shape) const {
  return {memory_.get() + (backend_.name() == "null" ? 0 : arena_.buffers[index(buffer)].offset), backend_.held(type), shape};
}

TensorView Walk::value_view(std::int32_t slot, const PassPlacement& place, ValueId v, const Shape& shape) const {
  const std::int32_t block = program_.slots[index(slot)].block;
  const Block& b = program_.blocks[index(block)];
  const BlockNotes& notes = notes_[index(block)];
  const std::int32_t buffer = place.values[index(v)];
  if (buffer < 0) {
    const auto feed = feeds_.find(b.values[index(v)].name);
    if (feed == feeds_.end()) throw std::logic_error("no buffer for " + b.values[index(v)].name + " of " + b.name);
    return feed->second;
  }
  TensorView out = buffer_view(buffer, b.values[index(v)].dtype, shape);
  if (!notes.columns[index(v)].empty()) out.columns = &notes.columns[index(v)], out.base_columns = notes.root_columns[index(v)];
  return out;
}

TensorView Walk::weight_view(std::int32_t slot, WeightId w) const {
  const Parameter& p = parameters_.all()[parameters_.of(index(slot), w)];
  if (!p.trained || cast_[index(slot)] < 0) return p.view();
  // Cast copies lie one after the other in the slot's gathered buffer.
  const Block& b = program_.blocks[index(program_.slots[index(slot)].block)];
  TensorView out = buffer_view(cast_[index(slot)], b.weights[index(w)].dtype, p.shape);
  std::int64_t offset = 0;
  for (WeightId before = 0; before < w; ++before)
    if (b.weights[index(before)].trained) offset += plain_bytes(out.dtype) * b.weights[index(before)].shape.elements();
  out.data += backend_.name() == "null" ? 0 : offset;
  return out;
}

void Walk::cast_weights(std::int32_t slot, std::int32_t buffer) {
  if (backend_.held(DType::bf16) == DType::f32) return;   // nothing to cast to
  const Block& b = program_.blocks[index(program_.slots[index(slot)].block)];
  cast_[index(slot)] = buffer;
  for (WeightId w = 0; w < static_cast<WeightId>(b.weights.size()); ++w)
    if (b.weights[index(w)].trained) backend_.copy(parameters_.all()[parameters_.of(index(slot), w)].view(), weight_view(slot, w));
}

void Walk::feed(const Instance& i, const Batch& batch) {
  const Block& b = program_.blocks[index(program_.slots[index(i.slot)].block)];
  const std::int64_t tokens = static_cast<std::int64_t>(batch.tokens.size());
  const auto floats = [](const auto& v) { return std::vector<float>(v.begin(), v.end()); };
  if (i.slot == 0) {
    feeds_.clear();
    std::byte* at = outside_.get();
    const auto put = [&](const char* name, std::int64_t offset, const std::vector<float>& values, DType type) {
      const TensorView view{at + (backend_.name() == "null" ? 0 : offset), type, {static_cast<std::int64_t>(values.size())}};
      backend_.write(view, values);
      feeds_[name] = view;
    };
    put("token_ids", 0, floats(batch.tokens), DType::i32);
    put("labels", 4 * tokens, floats(batch.labels), DType::i32);
    std::vector<float> positions;
    for (std::int64_t t = 0, begin = 0, next = 0; t < tokens; ++t) {
      if (batch.starts.empty()) begin = t / problem_.workload.sequence_length * problem_.workload.sequence_length;
      else while (next < static_cast<std::int64_t>(batch.starts.size()) && batch.starts[static_cast<std::size_t>(next)] <= t) begin = batch.starts[static_cast<std::size_t>(next++)];
      positions.push_back(static_cast<float>(t - begin));
    }
    put("positions", 8 * tokens, positions, DType::i32);
    if (!batch.starts.empty()) put("starts", 12 * tokens, floats(batch.starts), DType::i32);
    const TensorView ids = value_view(i.slot, arena_.slots[0].forward, b.inputs.front(), {tokens});
    backend_.write(ids, floats(batch.tokens));
  }
}

void Walk::record_routing(std::int32_t slot, std::size_t ordinal, const op::Router& op, std::span<const TensorView> views) {
  const Operands contract = op.operands();
  const auto read = [&](std::string_view name) {
    std::vector<float> out;
    for (std::size_t o = 0; o < contract.size(); ++o)
      if (contract[o].name == name) out.resize(static_cast<std::size_t>(contract[o].shape.elements())), backend_.read(views[o], out);
    return out;
  };
  backend_.wait();   // the counts are data: the host waits for them before it can size the experts' calls
  const std::vector<float> counts = read("counts"), scores = read("scores");
  RoutingReport report{.layer = program_.slots[index(slot)].layer, .counts = {}};
  for (const float c : counts) report.counts.push_back(static_cast<std::int64_t>(c));
  const std::int64_t rows = op.tokens * op.top_k;
  const auto bound = options_.capacity_factor > 0 ? std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(options_.capacity_factor * static_cast<double>(rows) / static_cast<double>(op.experts)))) : rows;
  std::vector<std::int64_t> kept;
  for (std::int64_t e = 0; e < op.experts; ++e) {
    kept.push_back(std::min(report.counts[static_cast<std::size_t>(e)], bound));
    report.dropped += report.counts[static_cast<std::size_t>(e)] - kept.back();
  }
  const double all = static_cast<double>(op.experts + op.zero_experts);
  for (std::int64_t t = 0; t < op.tokens; ++t) {
    double sum = 0, inner = 0;
    for (std::int64_t e = 0; e < op.experts + op.zero_experts; ++e) {
      const double s = scores[static_cast<std::size_t>(t * (op.experts + op.zero_experts) + e)];
      sum += s;
      inner += s * static_cast<double>(report.counts[static_cast<std::size_t>(e)]);
    }
    if (sum > 0) report.balance += all * inner / sum / (static_cast<double>(rows) * static_cast<double>(op.tokens));
  }
  auto& mine = kept_rows_[index(slot)];
  if (mine.size() <= ordinal * static_cast<std::size_t>(op.experts)) mine.resize((ordinal + 1) * static_cast<std::size_t>(op.experts));
  std::copy(kept.begin(), kept.end(), mine.begin() + static_cast<std::ptrdiff_t>(ordinal) * op.experts);
  routing_.push_back(std::move(report));
}

void Walk::node(const Instance& i, std::size_t at, const BlockNode& n, const RoutedCall& routed, const PassPlacement& place, const Batch& batch, float share) {
  const OpCall& lowered = std::get<OpCall>(n.call);
  const double begin = clock_ ? seconds_now() - began_ : 0;
  const Operands contract = operands(lowered.op);
  std::vector<TensorView> views(contract.size()), gradients(contract.size());
  std::size_t next_weight = 0;
  for (std::size_t o = 0; o < contract.size(); ++o) {
    if (contract[o].role == Role::weight) views[o] = weight_view(i.slot, n.weights[next_weight++]), views[o].shape = contract[o].shape;
    else if (n.operands[o] >= 0) views[o] = value_view(i.slot, place, n.operands[o], contract[o].shape);
    if (o < n.gradients.size() && n.gradients[o] >= 0) gradients[o] = value_view(i.slot, place, n.gradients[o], contract[o].shape);
  }
  if (const op::Split* split = std::get_if<op::Split>(&lowered.op)) {
    if (lowered.pass == Pass::forward) return;   // views
    // Pieces that lie in dx already are there; others are copied, and what nobody sent is zero.
    for (std::size_t o = 1; o < contract.size(); ++o) {
      const std::vector<std::int32_t> columns = piece_columns(*split, o - 1);
      TensorView slice = gradients[0];
      slice.shape = contract[o].shape, slice.columns = &columns, slice.base_columns = split_columns(*split);
      if (!gradients[o].present()) backend_.clear(slice);
      else if (gradients[o].data != gradients[0].data) backend_.copy(gradients[o], slice);
    }
    return;
  }
  OpCall call = lowered;
  if (!batch.starts.empty())
    if (auto with_starts = packed(call.op, static_cast<std::int64_t>(batch.starts.size()) - 1)) {
      call.op = std::move(with_starts->op);
      views.insert(views.begin() + static_cast<std::ptrdiff_t>(with_starts->at), feeds_.at(with_starts->positions ? "positions" : "starts"));
      gradients.insert(gradients.begin() + static_cast<std::ptrdiff_t>(with_starts->at), TensorView{});
    }
  CallContext context;
  if (const op::GroupedLinear* experts = std::get_if<op::GroupedLinear>(&call.op)) {
    context.rows_of_expert = std::span(kept_rows_[index(i.slot)]).subspan(routed.ordinal * static_cast<std::size_t>(experts->experts), static_cast<std::size_t>(experts->experts));
    std::int64_t rows = 0;
    for (const auto r : context.rows_of_expert) rows += r;
    if (rows > experts->rows)
      throw std::runtime_error(fmt::format("slot {}: {} routed rows, its buffer holds {} (overflow action: stop)", i.slot, rows, experts->rows));
  } else if (const op::Permute* permute = std::get_if<op::Permute>(&call.op); permute && options_.capacity_factor > 0) {
    const auto& layer = problem_.model.layers[index(program_.slots[index(i.slot)].layer)];
    std::int64_t routable = permute->experts;
    for (const Sublayer& s : layer.sublayers) if (const auto* f = std::get_if<MoeFfn>(&s.mixer)) routable = f->experts;
    context.capacity = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(options_.capacity_factor * static_cast<double>(permute->tokens * permute->top_k) / static_cast<double>(routable))));
  } else if (std::holds_alternative<op::Router>(call.op)) {
    context.auxiliary = options_.auxiliary * static_cast<double>(share);
  }
  backend_.call(call, views, gradients, context);
  if (const op::Router* router = std::get_if<op::Router>(&lowered.op); router && lowered.pass == Pass::forward && !n.recompute) record_routing(i.slot, routed.ordinal, *router, views);
  if (observer_) observer_({n, i.slot, i.micro_batch, views});
  if (clock_) backend_.wait(), clock_(i, n, begin, seconds_now() - began_);
  (void)at;
}

void Walk::instance(const Instance& i, const Batch& batch, float share) {
  SlotPlacement& place = arena_.slots[index(i.slot)];
  const Block& b = program_.blocks[index(program_.slots[index(i.slot)].block)];
  const BlockNotes& notes = notes_[index(program_.slots[index(i.slot)].block)];
  if (i.phase == Phase::forward) {
    feed(i, batch);
    for (std::size_t n = 0; n < b.forward.size(); ++n) node(i, n, b.forward[n], notes.forward[n], place.forward, batch, share);
  } else {
    if (index(i.slot) + 1 == program_.slots.size())
      for (const ValueId g : b.output_grads) if (g >= 0) backend_.write(value_view(i.slot, place.backward, g, {1}), std::array{share});
    for (std::size_t n = 0; n < b.backward.size(); ++n) node(i, n, b.backward[n], notes.backward[n], place.backward, batch, share);
    after_backward(i);
  }
}

void Walk::after_backward(const Instance& i) {
  const SlotPlacement& place = arena_.slots[index(i.slot)];
  const Block& b = program_.blocks[index(program_.slots[index(i.slot)].block)];
  for (const CarriedSum& s : place.sums) {
    const Shape shape{arena_.buffers[index(s.to)].bytes.value / plain_bytes(backend_.held(DType::bf16))};
    backend_.add(buffer_view(s.from, DType::bf16, shape), buffer_view(s.to, DType::bf16, shape), 1);
  }
  for (WeightId w = 0; w < static_cast<WeightId>(b.weights.size()); ++w) {
    const ValueId g = b.weight_grads[index(w)];
    if (g < 0) continue;
    const Parameter& p = parameters_.all()[parameters_.of(index(i.slot), w)];
    backend_.add(value_view(i.slot, place.backward, g, p.shape), p.gradient_view(), 1);
  }
}

float Walk::run(std::int32_t micro_batch, const Batch& batch, float share) {
  routing_.clear();
  if (clock_ && micro_batch == 0) began_ = seconds_now();
  float loss = 0;
  std::vector<bool> forwarded(program_.slots.size(), false);
  for (const Instance& i : program_.instances) {
    if (i.micro_batch != micro_batch || i.slot < 0) continue;
    const SlotPlacement& place = arena_.slots[index(i.slot)];
    switch (i.phase) {
      case Phase::gather: cast_weights(i.slot, forwarded[index(i.slot)] ? place.gathered_backward : place.gathered); break;
      case Phase::release: cast_[index(i.slot)] = -1; break;
      case Phase::forward:
        instance(i, batch, share);
        forwarded[index(i.slot)] = true;
        if (index(i.slot) + 1 == program_.slots.size()) {
          const Block& head = program_.blocks[index(program_.slots.back().block)];
          backend_.wait();
          backend_.read(value_view(i.slot, place.forward, head.outputs.front(), {1}), std::span(&loss, 1));
        }
        break;
      case Phase::backward: instance(i, batch, share); break;
      default: break;
    }
  }
  return loss;
}

float Walk::evaluate(const Batch& batch) {
  routing_.clear();
  float loss = 0;
  for (std::int32_t s = 0; s < static_cast<std::int32_t>(program_.slots.size()); ++s) {
    const SlotPlacement& place = arena_.slots[index(s)];
    if (place.gathered >= 0) cast_weights(s, place.gathered);
    instance({.phase = Phase::forward, .slot = s, .micro_batch = 0, .after = {}}, batch, 1);
    cast_[index(s)] = -1;
  }
  backend_.wait();
  const Block& head = program_.blocks[index(program_.slots.back().block)];
  backend_.read(value_view(static_cast<std::int32_t>(program_.slots.size()) - 1, arena_.slots.back().forward, head.outputs.front(), {1}), std::span(&loss, 1));
  return loss;
}

}  // namespace moeplan
