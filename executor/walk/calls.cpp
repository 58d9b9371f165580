/// Operator calls: where their operands are, and what only the data says about them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/walk/capacity.hpp"
#include "executor/walk/columns.hpp"
#include "executor/walk/packing.hpp"
#include "executor/walk/pieces.hpp"
#include "executor/walk/walk.hpp"
#include "sim/program/routed_rows.hpp"

namespace moeplan {
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
    return own_share(feed->second, shape.elements());
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
    if (p.away) out.dtype = p.held, out.arranged = p.arranged;
    return out;
  }
  if (p.shards > 1 || p.away) throw std::logic_error(p.name + " is used while it is not gathered");
  return p.view();
}

void Walk::compute(const Instance& i, const BlockNode& n, const RoutedCall& routed, const PassPlacement& place,
                   std::int32_t workspace, MicroBatchState& state) {
  if (n.summary) return summarise(i, n, place, state);
  if (n.operands.empty()) return ring_step(i, n, place, state);
  if (routed.by_piece) {
    for (std::int32_t k = 0; k < plan_.experts.chunks; ++k)
      compute(i, n, {.ordinal = routed.ordinal, .routed = routed.routed, .piece = k}, place, workspace, state);
    return;
  }
  OpCall lowered = std::get<OpCall>(n.call);
  const Routes* part = routed.piece < 0 ? nullptr : &state.routes[index(i.slot)].at(routed.ordinal).parts.at(index(routed.piece));
  if (part) *rows_of_routed(lowered.op) = part->received_rows();
  const Batch& batch = *state.batch;
  const Operands contract = operands(lowered.op);
  std::vector<std::pair<TensorView, TensorView>> sums;  // gradients of weights by this piece, and of those before it
  if (part) taken_ = 0;
  std::vector<TensorView> views(contract.size()), gradients(contract.size());
  std::size_t next_weight = 0;
  for (std::size_t o = 0; o < contract.size(); ++o) {
    if (contract[o].role == Role::weight)
      views[o] = weight_view(i.slot, n.weights[next_weight++]), views[o].shape = contract[o].shape;
    else if (n.operands[o] >= 0)
      views[o] = value_view(i.slot, place, n.operands[o], contract[o].shape, state);
    if (o < n.gradients.size() && n.gradients[o] >= 0)
      gradients[o] = value_view(i.slot, place, n.gradients[o], contract[o].shape, state);
    if (!part) continue;
    if (is_cut(i.slot, n.operands[o])) views[o] = from_row(views[o], part->received_before);
    if (o < n.gradients.size() && is_cut(i.slot, n.gradients[o])) gradients[o] = from_row(gradients[o], part->received_before);
    if (contract[o].role != Role::weight || !gradients[o].present()) continue;
    if (routed.piece == 0) {
      if (part->received_rows() == 0) backend_.clear(gradients[o]);
    } else {
      TensorView partial = take(gradients[o].dtype, 1, contract[o].shape.elements());
      partial.shape = contract[o].shape;
      sums.emplace_back(partial, gradients[o]);
      gradients[o] = partial;
    }
  }
  if (part && part->received_rows() == 0) return;
  const TensorView given =
      workspace < 0 ? TensorView{}
                    : buffer_view(workspace, DType::u8, {arena_.buffers[index(workspace)].bytes.value});
  if (const op::Split* split = std::get_if<op::Split>(&lowered.op)) {
    if (lowered.pass == Pass::forward) return;  // views
    backend_.lend(given);
    // Pieces that lie in dx already are there; others are copied, and what nobody sent is zero.
    for (std::size_t o = 1; o < contract.size(); ++o) {
      TensorView slice = gradients[0];
      slice.shape = contract[o].shape, slice.columns = &notes_of(i.slot).pieces.at(&n)[o - 1],
      slice.base_columns = split_columns(*split);
      if (!gradients[o].present())
        backend_.clear(slice);
      else if (gradients[o].data != gradients[0].data)
        backend_.copy(gradients[o], slice);
    }
    backend_.lend({});
    return;
  }
  OpCall call = lowered;
  const bool placed = !batch.positions.empty() && std::holds_alternative<op::Rope>(call.op);
  if (!batch.starts.empty() || placed)
    if (auto with_starts =
            packed(call.op, std::max<std::int64_t>(0, static_cast<std::int64_t>(batch.starts.size()) - 1))) {
      call.op = std::move(with_starts->op);
      views.insert(views.begin() + static_cast<std::ptrdiff_t>(with_starts->at),
                   state.feeds.at(with_starts->positions                                   ? "positions"
                                  : operands(call.op)[with_starts->at].dtype == DType::i64 ? "long_starts"
                                                                                           : "starts"));
      gradients.insert(gradients.begin() + static_cast<std::ptrdiff_t>(with_starts->at), TensorView{});
    }
  CallContext context;
  if (const op::GroupedLinear* experts = std::get_if<op::GroupedLinear>(&call.op); experts && part) {
    context.rows_of_expert = part->rows_of_expert;
  } else if (experts) {
    std::int64_t rows = 0;
    if (hosted_) {
      context.rows_of_expert = rows_of_experts(i.slot, routed.ordinal, experts->experts, state);
      for (const auto r : context.rows_of_expert) rows += r;
    } else {  // every copy has its row, whoever it went to
      const RouterAt& router = router_at(i.slot, routed.ordinal);
      context.expert_rows = tally_view(state, router, false, experts->experts);
      rows = router.op.tokens * router.op.top_k;
    }
    if (rows > experts->rows)
      throw std::runtime_error(fmt::format("slot {}: {} routed rows, its buffer holds {} (overflow action: stop)",
                                           i.slot, rows, experts->rows));
  } else if (std::holds_alternative<op::Permute>(call.op) && limits_by_host()) {
    if (call.pass == Pass::forward && !routed.routed)
      throw std::logic_error("permute of " + block_of(i.slot).name + " reads no router's choice");
    if (call.pass == Pass::forward)  // which copies go where is decided already
      views[1] = {state.limited.at({i.slot, routed.ordinal}).kept.get(), DType::i32, contract[1].shape};
  } else if (const op::Permute* permute = std::get_if<op::Permute>(&call.op); permute && options_.capacity_factor > 0) {
    const auto& layer = problem_.model.layers[index(program_.slots[index(i.slot)].layer)];
    std::int64_t routable = permute->experts;
    for (const Sublayer& s : layer.sublayers)
      if (const auto* f = std::get_if<MoeFfn>(&s.mixer)) routable = f->experts;
    context.capacity = expert_capacity(options_.capacity_factor, permute->tokens * permute->top_k, routable);
  } else if (std::holds_alternative<op::Router>(call.op)) {
    context.auxiliary =
        options_.auxiliary * static_cast<double>(state.balance_share) / static_cast<double>(sharers() * sharers());
    if (options_.auxiliary > 0 && sharers() > 1 && call.pass == Pass::backward)
      context.rows_of_expert = state.shared_counts[index(i.slot)].at(routed.ordinal);
  }
  context.workspace = given;
  if (plan_.parallelism.ep > 1 && plan_.parallelism.etp == 1)  // buffers are bounded for the fullest layer, calls take the rows that are there
    if (std::int64_t* rows = ragged_rows(call.op)) {
      std::int64_t arrived = 0;
      for (const auto& routes : state.routes[index(i.slot)])
        for (const auto r : routes.rows_of_expert) arrived += r;
      if (arrived < *rows) {
        *rows = arrived;
        const Operands fitted = operands(call.op);
        for (std::size_t o = 0; o < fitted.size(); ++o) views[o].shape = gradients[o].shape = fitted[o].shape;
      }
    }
  if (plan_.parallelism.cp > 1 && selects_keys(call.op))
    call_by_runs(call, views, gradients);
  else if (plan_.parallelism.cp > 1 && reads_beyond(n) > 0)
    continued_call(i, n, place, call, views, gradients, context, state);
  else
    backend_.call(call, views, gradients, context);
  for (const auto& [partial, sum] : sums) backend_.add(partial, sum, 1);
  if (std::holds_alternative<op::Router>(lowered.op) && lowered.pass == Pass::forward && !n.recompute)
    tally(i.slot, routed.ordinal, views, state);
  if (observer_) observer_({n, i.slot, i.micro_batch, views});
}

}  // namespace moeplan
