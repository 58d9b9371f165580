/// Communication calls: rows to experts and back, gradients reduced, messages between stages.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/ranks/runnable.hpp"
#include "executor/ranks/slots.hpp"
#include "executor/slice/slice.hpp"
#include "executor/walk/pieces.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {
void Walk::communicate(const Instance& i, const BlockNode& n, const RoutedCall& routed, const PassPlacement& place,
                       MicroBatchState& state) {
  const CommCall& comm = std::get<CommCall>(n.call);
  const Block& b = block_of(i.slot);
  const ValueId in = whole_of(b, n.reads.front()), out = whole_of(b, n.writes.front());
  const TensorView from = value_view(i.slot, place, in, b.values[index(in)].shape, state);
  const TensorView to = value_view(i.slot, place, out, b.values[index(out)].shape, state);
  if (comm.group == Group::expert && !n.operands.empty()) return exchange_once(i, n, place, to, state);
  if (routed.routed) return exchange_rows(i, n, routed, place, from, to, state);
  if (is_merge(b, n)) return merge_loss(i, n, place, state);
  if (comm.group == Group::context && comm.collective == Collective::send_receive)
    return comm.rows > 0 ? pass_rows(i, n, place, state) : pass_round(i, n, place, state);
  if (comm.group == Group::context &&
      (comm.collective == Collective::state_chain || comm.collective == Collective::state_scan))
    return pass_state(i, from, to, comm.collective == Collective::state_scan);
  if (comm.group == Group::context) return exchange_context(comm, from, to);
  if (from.columns || to.columns) throw std::logic_error("a collective on a view in " + b.name);
  Communicator& group = ranks_->need(comm.group);
  const Wire wire = wire_of(from.dtype);
  if (comm.collective == Collective::all_reduce) backend_.copy(from, to);
  after_compute(group, backend_);
  switch (comm.collective) {
    case Collective::all_gather:
      group.all_gather(from.data, to.data, from.shape.elements() * wire.per_element, wire.dtype);
      break;
    case Collective::reduce_scatter:
      group.reduce_scatter(from.data, to.data, to.shape.elements(), from.dtype);
      break;
    case Collective::all_reduce:
      group.all_reduce(to.data, to.shape.elements(), to.dtype);
      break;
    default:
      throw std::logic_error(fmt::format("{}: a {} inside a block", b.name, name_of(comm.collective)));
  }
  before_compute(group, backend_);
}

std::string Walk::place_of(const Instance& i) const {
  return fmt::format("layer {}, micro-batch {}", program_.slots[index(i.slot)].layer, i.micro_batch);
}

/// Before rows go to the experts the first time: how many of whom. Expert-tensor ranks take the rows of all of them.
void Walk::learn_routes(const Instance& i, const BlockNode& n, std::size_t ordinal, const PassPlacement& place,
                        const TensorView& to, MicroBatchState& state) {
  const CommCall& comm = std::get<CommCall>(n.call);
  auto& routes = state.routes[index(i.slot)];
  routes.resize(std::max(routes.size(), ordinal + 1));
  Routes& mine = routes[ordinal];
  const std::int32_t layer = program_.slots[index(i.slot)].layer;
  const auto all = std::span(state.kept_rows[index(i.slot)]);
  const auto experts = all.size() / routes.size();  // one router a block
  const auto kept = all.subspan(ordinal * experts, experts);
  const bool neighbours = comm.group == Group::expert_tensor;
  Communicator& group = ranks_->need(comm.group);
  const Slots slots = parameters_.slots(layer);
  if (!neighbours && !n.operands.empty())
    mine = learn_tokens(i, n, place, state);
  else if (!neighbours)
    mine = options_.slice ? slice_routes(kept, options_.slice->at({layer, i.micro_batch}), group.rank(), group.size())
                          : exchange_counts(group, kept, slots ? std::span(*slots) : std::span<const std::int64_t>{},
                                            plan_.experts.chunks);
  else if (plan_.parallelism.ep == 1)
    mine = {.local_experts = static_cast<std::int64_t>(experts),
            .sent = {},
            .received = {},
            .rows_of_expert = {kept.begin(), kept.end()}};
  if (neighbours) exchange_neighbours(group, mine);
  if (neighbours && plan_.parallelism.ep > 1)
    step_routes_.back().routes = mine;
  else
    step_routes_.push_back({i.slot, i.micro_batch, mine});
  const auto& arriving = neighbours ? mine.rows_in_calls : mine.rows_of_expert;
  require_rows(place_of(i), std::accumulate(arriving.begin(), arriving.end(), std::int64_t{0}), fmt::format("rank {}", ranks_->place().rank),
               to.shape.elements() / width_of(to));
}

void Walk::exchange_rows(const Instance& i, const BlockNode& n, const RoutedCall& routed, const PassPlacement& place,
                         TensorView from, TensorView to, MicroBatchState& state) {
  const CommCall& comm = std::get<CommCall>(n.call);
  const bool dispatch = comm.collective == Collective::dispatch, forward = i.phase == Phase::forward;
  tell(forward ? (dispatch ? "forward dispatch" : "forward combine")
               : (dispatch ? "backward dispatch" : "backward combine"));
  Communicator& group = ranks_->need(comm.group);
  auto& routes = state.routes[index(i.slot)];
  const bool neighbours = comm.group == Group::expert_tensor;
  if (forward && routed.piece <= 0 && (dispatch || (neighbours && comm.collective == Collective::all_gather)))
    learn_routes(i, n, routed.ordinal, place, to, state);
  Exchange by{group, backend_, staging_.get(), static_cast<bool>(clock_)};
  const Routes& all = routes.at(routed.ordinal);
  if (neighbours) {
    comm.collective == Collective::all_gather ? gather_neighbours(by, all, from, to)
                                              : sum_neighbours(by, all, from, to);
  } else if (routed.piece < 0) {
    const InFlight whole{&i, &n, -1, -1, dispatch ? dispatch_rows(by, all, from, to) : combine_rows(by, all, from, to)};
    if (clock_) timed_.emplace_back(&i, &n), backend_.stamp();  // putting rows in order is no wait
    land(whole);
    if (!dispatch) clear_rest(by, all, to);
  } else {
    // Each piece has its own part of the scratch, and the way back the second half: what is under way is left alone.
    const Routes& part = all.parts.at(index(routed.piece));
    (dispatch ? to : from) = from_row(dispatch ? to : from, part.received_before);
    if (backend_.name() != "null")
      by.scratch += (dispatch ? 0 : staged_.buffer.value / 2) +
                    (part.sent_before + part.received_before) * width_of(from) * plain_bytes(from.dtype);
    if (!dispatch && routed.piece == 0) clear_rest(by, all, to);
    // Pieces of another value going the same way (rows sent again for backward, beside its gradients) lie where these will: they land first.
    const ValueId whole = whole_of(block_of(i.slot), n.writes.front());
    std::erase_if(in_flight_, [&](InFlight& each) {
      if (each.value == whole || std::get<CommCall>(each.node->call).collective != comm.collective) return false;
      land(each);
      return true;
    });
    in_flight_.push_back({&i, &n, whole, routed.piece,
                          dispatch ? dispatch_rows(by, part, from, to) : combine_rows(by, part, from, to)});
  }
  tell(forward ? "forward" : "backward");
}

/// A view without its first `row` rows.
TensorView Walk::from_row(TensorView view, std::int64_t row) {
  view.data += row * (view.columns ? view.base_columns : width_of(view)) * plain_bytes(view.dtype);
  return view;
}

bool Walk::is_cut(std::int32_t slot, ValueId v) const { return v >= 0 && notes_of(slot).cut[index(v)]; }

/// Whether a trained weight's gradient crosses the network.
bool Walk::reduces(const Parameter& p) const {
  return ranks_ && (!p.alike.empty() || ranks_->of(shard_group(p.split)) || ranks_->of(replicate_group(p.split)));
}

void Walk::add_gradients(const Instance& i, const MicroBatchState& state) {
  const SlotPlacement& place = arena_.lane(i.micro_batch).slots[index(i.slot)];
  const Block& b = block_of(i.slot);
  for (WeightId w = 0; w < static_cast<WeightId>(b.weights.size()); ++w) {
    const ValueId g = b.weight_grads[index(w)];
    if (g < 0) continue;
    const Parameter& p = parameters_.all()[parameters_.of(index(i.slot), w)];
    if (!reduces(p) && !p.silent)
      backend_.add(value_view(i.slot, place.backward, g, p.shape, state), p.gradient_view(), 1);
  }
}

namespace {
constexpr std::int64_t kMostGiven = 4096;   ///< sums remembered; later ones take the place of the earliest
}

/// A NaN that is summed over ranks is everybody's: whose it was can only be seen before. One more reading of the gradients.
void Walk::note_given(const TensorView& gradients) {
  if (backend_.name() == "null" || gradients.shape.elements() == 0) return;
  if (!given_) given_ = backend_.allocate({4 * kMostGiven}, "sums of squares of gradients given");
  const TensorView sum{given_.get() + 4 * (given_sums_++ % kMostGiven), DType::f32, {1}};
  backend_.call({op::GradNorm{.elements = gradients.shape.elements(), .gradient = gradients.dtype}, Pass::forward, {}}, std::array{gradients, sum},
                std::array<TensorView, 2>{}, {});
}

std::optional<bool> Walk::gave_finite() {
  const std::int64_t n = std::min(given_sums_, kMostGiven);
  if (n == 0) return std::nullopt;
  std::vector<float> squares(static_cast<std::size_t>(n));
  backend_.wait();
  backend_.read({given_.get(), DType::f32, {n}}, squares);
  return std::all_of(squares.begin(), squares.end(), [](float x) { return std::isfinite(x); });
}

/// As many gradients of the slot at a time as the staging memory holds.
void Walk::reduce_gradients(const Instance& i, const MicroBatchState& state) {
  const SlotPlacement& place = arena_.lane(i.micro_batch).slots[index(i.slot)];
  const Block& b = block_of(i.slot);
  const DType type = backend_.held(problem_.runtime.reduce);
  const std::int64_t width = plain_bytes(type), room = staged_.buffer.value / width;
  struct Piece {
    const Parameter* parameter;
    std::int64_t first, count;  ///< in the staging memory: its place there, and what each rank keeps of it
    TensorView part;
  };
  std::vector<Piece> pieces;
  std::int64_t used = 0;
  const auto at = [&](std::int64_t first, std::int64_t n) {
    return TensorView{staging_.get() + first * width, type, {n}};
  };
  const auto over = [&](Group group, auto shares, auto call) {
    if (std::none_of(pieces.begin(), pieces.end(), shares)) return;
    Communicator& c = ranks_->need(group);
    after_compute(c, backend_);
    c.begin_together();
    for (const Piece& p : pieces)
      if (shares(p)) call(c, p);
    c.end_together();
    before_compute(c, backend_);
  };
  const auto sum_alike = [&] {
    std::vector<std::pair<Communicator*, TensorView>> sums;
    for (const Piece& p : pieces)
      for (const AlikeRows& a : p.parameter->alike)
        sums.emplace_back(&ranks_->sharers(alike_group(p.parameter->split), a.ranks),
                          at(p.first + a.first, a.elements));
    while (!sums.empty()) {  // one communicator after the other
      Communicator& c = *sums.front().first;
      after_compute(c, backend_);
      c.begin_together();
      for (const auto& [group, part] : sums)
        if (group == &c) c.all_reduce(part.data, part.shape.elements(), type);
      c.end_together();
      before_compute(c, backend_);
      std::erase_if(sums, [&](const auto& each) { return each.first == &c; });
    }
  };
  const auto send = [&] {
    note_given(at(0, used));
    sum_alike();
    for (const Group group : {Group::data_shard, Group::expert_data_shard})
      over(
          group, [&](const Piece& p) { return p.parameter->shards > 1 && shard_group(p.parameter->split) == group; },
          [&](Communicator& c, const Piece& p) { c.reduce_scatter(at(p.first, 0).data, p.part.data, p.count, type); });
    for (const Group group : {Group::data_replicate, Group::expert_data_replicate})
      if (ranks_->of(group))
        over(
            group, [&](const Piece& p) { return replicate_group(p.parameter->split) == group; },
            [&](Communicator& c, const Piece& p) { c.all_reduce(p.part.data, p.count, type); });
    for (const Piece& p : pieces)
      if (!p.parameter->silent) backend_.add(p.part, p.parameter->gradient_view(), 1);
    pieces.clear();
    used = 0;
  };
  for (WeightId w = 0; w < static_cast<WeightId>(b.weights.size()); ++w) {
    const ValueId g = b.weight_grads[index(w)];
    if (g < 0) continue;
    const Parameter& p = parameters_.all()[parameters_.of(index(i.slot), w)];
    if (!reduces(p)) continue;
    const std::int64_t elements = p.shape.elements(), count = p.held_shape().elements();
    if (used + count * p.shards > room) send();
    backend_.copy(value_view(i.slot, place.backward, g, p.shape, state), at(used, elements));
    if (const std::int64_t padding = count * p.shards - elements; padding > 0)
      backend_.clear(at(used + elements, padding));
    const std::int64_t mine = p.shards > 1 ? ranks_->place().index(shard_group(p.split)) * count : 0;
    pieces.push_back({&p, used, count, at(used + mine, count)});
    used += count * p.shards;
  }
  send();
}

/// A receive takes the sends before it along, so that neighbours that send to each other cannot block each other.
void Walk::message(std::size_t at) {
  const Instance& i = program_.instances[at];
  const ChunkEnds& ends = arena_.lane(i.micro_batch).ends[index(arena_.chunk[at])];
  const auto& buffers = i.sent.value > 0 ? (i.with_next ? ends.leaving : ends.entering_gradients)
                                         : (i.with_next ? ends.leaving_gradients : ends.entering);
  Communicator& stages = ranks_->need(Group::pipeline);
  // Virtual stages go round: the last stage comes before the first.
  const int peer = (ranks_->place().stage() + (i.with_next ? 1 : stages.size() - 1)) % stages.size();
  const DType type = backend_.held(DType::bf16);
  std::vector<Transfer> parts;
  for (const std::int32_t id : buffers)
    parts.push_back({buffer_view(id, DType::bf16, {0}).data, arena_.buffers[index(id)].bytes.value / plain_bytes(type),
                     type, peer});
  if (i.sent.value > 0) {
    sending_.insert(sending_.end(), parts.begin(), parts.end());
    return;
  }
  for (const std::int32_t id : buffers) claim(id);
  receiving_.insert(receiving_.end(), parts.begin(), parts.end());
  if (goes_with_next(program_, at)) return;
  after_compute(stages, backend_);
  stages.send_receive(sending_, receiving_);
  before_compute(stages, backend_);
  sending_.clear(), receiving_.clear();
}

void Walk::flush_sends() {
  if (sending_.empty()) return;
  tell("pipeline exchange");
  apart([&] {
    Communicator& stages = ranks_->need(Group::pipeline);
    after_compute(stages, backend_);
    stages.send_receive(sending_, {});
    before_compute(stages, backend_);
  });
  sending_.clear();
}

}  // namespace moeplan
