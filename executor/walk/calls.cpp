/// Operator calls: where their operands are, and what only the data says about them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/walk/columns.hpp"
#include "executor/walk/packing.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {
namespace {

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

}  // namespace

TensorView Walk::buffer_view(std::int32_t buffer, DType type, const Shape& shape) const {
  return {memory_.get() + (backend_.name() == "null" ? 0 : arena_.buffers[index(buffer)].offset), backend_.held(type),
          shape};
}

TensorView Walk::value_view(std::int32_t slot, const PassPlacement& place, ValueId v, const Shape& shape,
                            const MicroBatchState& state) const {
  const Block& b = block_of(slot);
  const BlockNotes& notes = notes_of(slot);
  const std::int32_t buffer = place.values[index(v)];
  if (buffer < 0) {
    const auto feed = state.feeds.find(b.values[index(v)].name);
    if (feed == state.feeds.end()) throw std::logic_error("no buffer for " + b.values[index(v)].name + " of " + b.name);
    return feed->second;
  }
  TensorView out = buffer_view(buffer, b.values[index(v)].dtype, shape);
  if (!notes.columns[index(v)].empty())
    out.columns = &notes.columns[index(v)], out.base_columns = notes.root_columns[index(v)];
  return out;
}

TensorView Walk::gathered_view(std::int32_t slot, WeightId w, std::int64_t elements) const {
  TensorView out = buffer_view(gathered_[index(slot)], block_of(slot).weights[index(w)].dtype, {elements});
  out.data += backend_.name() == "null" ? 0 : notes_of(slot).gathered.offset[index(w)];
  return out;
}

TensorView Walk::weight_view(std::int32_t slot, WeightId w) const {
  const Parameter& p = parameters_.all()[parameters_.of(index(slot), w)];
  if (notes_of(slot).gathered.offset[index(w)] < 0) return p.view();
  if (gathered_[index(slot)] >= 0) {
    TensorView out = gathered_view(slot, w, p.shape.elements());
    out.shape = p.shape;
    return out;
  }
  if (p.shards > 1) throw std::logic_error(p.name + " is used while it is not gathered");
  return p.view();
}

std::span<const std::int64_t> Walk::rows_of_experts(std::int32_t slot, std::size_t ordinal, std::int64_t experts,
                                                    const MicroBatchState& state) const {
  if (plan_.parallelism.ep > 1) return state.routes[index(slot)].at(ordinal).rows_of_expert;
  return std::span(state.kept_rows[index(slot)])
      .subspan(ordinal * static_cast<std::size_t>(experts), static_cast<std::size_t>(experts));
}

void Walk::feed(const Instance& i, MicroBatchState& state) {
  const Batch& batch = *state.batch;
  const Block& b = block_of(i.slot);
  const std::int64_t tokens = static_cast<std::int64_t>(batch.tokens.size());
  const auto floats = [](const auto& v) { return std::vector<float>(v.begin(), v.end()); };
  state.feeds.clear();
  std::byte* at = state.outside.get();
  const auto put = [&](const char* name, std::int64_t offset, const std::vector<float>& values, DType type) {
    const TensorView view{
        at + (backend_.name() == "null" ? 0 : offset), type, {static_cast<std::int64_t>(values.size())}};
    backend_.write(view, values);
    state.feeds[name] = view;
  };
  put("token_ids", 0, floats(batch.tokens), DType::i32);
  put("labels", 4 * tokens, floats(batch.labels), DType::i32);
  std::vector<float> positions;
  for (std::int64_t t = 0, begin = 0, next = 0; t < tokens; ++t) {
    if (batch.starts.empty())
      begin = t / problem_.workload.sequence_length * problem_.workload.sequence_length;
    else
      while (next < static_cast<std::int64_t>(batch.starts.size()) && batch.starts[static_cast<std::size_t>(next)] <= t)
        begin = batch.starts[static_cast<std::size_t>(next++)];
    positions.push_back(static_cast<float>(t - begin));
  }
  put("positions", 8 * tokens, positions, DType::i32);
  if (!batch.starts.empty()) put("starts", 12 * tokens, floats(batch.starts), DType::i32);
  if (!program_.chunks.front().receives)
    backend_.write(value_view(i.slot, arena_.lane(i.micro_batch).slots[0].forward, b.inputs.front(), {tokens}, state),
                   floats(batch.tokens));
}

void Walk::record_routing(std::int32_t slot, std::size_t ordinal, const op::Router& op,
                          std::span<const TensorView> views, MicroBatchState& state) {
  const Operands contract = op.operands();
  const auto read = [&](std::string_view name) {
    std::vector<float> out;
    for (std::size_t o = 0; o < contract.size(); ++o)
      if (contract[o].name == name)
        out.resize(static_cast<std::size_t>(contract[o].shape.elements())), backend_.read(views[o], out);
    return out;
  };
  backend_.wait();  // the counts are data: the host waits for them before it can size the experts' calls
  const std::vector<float> counts = read("counts"), scores = read("scores");
  RoutingReport report{.layer = program_.slots[index(slot)].layer, .counts = {}};
  for (const float c : counts) report.counts.push_back(static_cast<std::int64_t>(c));
  const std::int64_t rows = op.tokens * op.top_k;
  const auto bound =
      options_.capacity_factor > 0
          ? std::max<std::int64_t>(
                1, static_cast<std::int64_t>(std::ceil(options_.capacity_factor * static_cast<double>(rows) /
                                                       static_cast<double>(op.experts))))
          : rows;
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
  auto& mine = state.kept_rows[index(slot)];
  if (mine.size() <= ordinal * static_cast<std::size_t>(op.experts))
    mine.resize((ordinal + 1) * static_cast<std::size_t>(op.experts));
  std::copy(kept.begin(), kept.end(), mine.begin() + static_cast<std::ptrdiff_t>(ordinal) * op.experts);
  state.result.routing.push_back(std::move(report));
}

void Walk::compute(const Instance& i, const BlockNode& n, const RoutedCall& routed, const PassPlacement& place,
                   MicroBatchState& state) {
  const OpCall& lowered = std::get<OpCall>(n.call);
  const Batch& batch = *state.batch;
  const Operands contract = operands(lowered.op);
  std::vector<TensorView> views(contract.size()), gradients(contract.size());
  std::size_t next_weight = 0;
  for (std::size_t o = 0; o < contract.size(); ++o) {
    if (contract[o].role == Role::weight)
      views[o] = weight_view(i.slot, n.weights[next_weight++]), views[o].shape = contract[o].shape;
    else if (n.operands[o] >= 0)
      views[o] = value_view(i.slot, place, n.operands[o], contract[o].shape, state);
    if (o < n.gradients.size() && n.gradients[o] >= 0)
      gradients[o] = value_view(i.slot, place, n.gradients[o], contract[o].shape, state);
  }
  if (const op::Split* split = std::get_if<op::Split>(&lowered.op)) {
    if (lowered.pass == Pass::forward) return;  // views
    // Pieces that lie in dx already are there; others are copied, and what nobody sent is zero.
    for (std::size_t o = 1; o < contract.size(); ++o) {
      const std::vector<std::int32_t> columns = piece_columns(*split, o - 1);
      TensorView slice = gradients[0];
      slice.shape = contract[o].shape, slice.columns = &columns, slice.base_columns = split_columns(*split);
      if (!gradients[o].present())
        backend_.clear(slice);
      else if (gradients[o].data != gradients[0].data)
        backend_.copy(gradients[o], slice);
    }
    return;
  }
  OpCall call = lowered;
  if (!batch.starts.empty())
    if (auto with_starts = packed(call.op, static_cast<std::int64_t>(batch.starts.size()) - 1)) {
      call.op = std::move(with_starts->op);
      views.insert(views.begin() + static_cast<std::ptrdiff_t>(with_starts->at),
                   state.feeds.at(with_starts->positions ? "positions" : "starts"));
      gradients.insert(gradients.begin() + static_cast<std::ptrdiff_t>(with_starts->at), TensorView{});
    }
  CallContext context;
  if (const op::GroupedLinear* experts = std::get_if<op::GroupedLinear>(&call.op)) {
    context.rows_of_expert = rows_of_experts(i.slot, routed.ordinal, experts->experts, state);
    std::int64_t rows = 0;
    for (const auto r : context.rows_of_expert) rows += r;
    if (rows > experts->rows)
      throw std::runtime_error(fmt::format("slot {}: {} routed rows, its buffer holds {} (overflow action: stop)",
                                           i.slot, rows, experts->rows));
  } else if (const op::Permute* permute = std::get_if<op::Permute>(&call.op); permute && options_.capacity_factor > 0) {
    const auto& layer = problem_.model.layers[index(program_.slots[index(i.slot)].layer)];
    std::int64_t routable = permute->experts;
    for (const Sublayer& s : layer.sublayers)
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer)) routable = f->experts;
    context.capacity = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(
               std::ceil(options_.capacity_factor * static_cast<double>(permute->tokens * permute->top_k) /
                         static_cast<double>(routable))));
  } else if (std::holds_alternative<op::Router>(call.op)) {
    context.auxiliary = options_.auxiliary * static_cast<double>(state.share);
  }
  backend_.call(call, views, gradients, context);
  if (const op::Router* router = std::get_if<op::Router>(&lowered.op);
      router && lowered.pass == Pass::forward && !n.recompute)
    record_routing(i.slot, routed.ordinal, *router, views, state);
  if (observer_) observer_({n, i.slot, i.micro_batch, views});
}

}  // namespace moeplan
