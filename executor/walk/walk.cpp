#include "executor/walk/walk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/walk/columns.hpp"
#include "executor/walk/pieces.hpp"
#include "sim/program/call_scratch.hpp"
#include "sim/program/routed_rows.hpp"

namespace moeplan {
namespace {

/// Recordings kept; a packed data set has many numbers of sequences, and each recording takes memory.
constexpr std::size_t kMostRecordings = 4;

}  // namespace

Walk::Walk(const Program& program, const Problem& problem, const Plan& plan, Parameters& parameters, Backend& backend,
           const WalkOptions& options, RankGroups* ranks, Progress* progress)
    : program_(program),
      problem_(problem),
      plan_(plan),
      parameters_(parameters),
      backend_(backend),
      options_(options),
      ranks_(ranks),
      progress_(progress) {
  if (plan.experts.capacity_factor && options.capacity_factor == 0)
    options_.capacity_factor = *plan.experts.capacity_factor, options_.overflow = plan.experts.overflow;
  if (offloads_weights(plan.offload))
    fetched_ = [this](const Block& b, WeightId w) {
      std::size_t slot = 0;
      while (&block_of(static_cast<std::int32_t>(slot)) != &b) ++slot;
      return parameters_.all()[parameters_.of(slot, w)].held;
    };
  for (const Block& b : program.blocks) {
    for (const auto* pass : {&b.forward, &b.backward, &b.weight_backward})
      for (const BlockNode& n : *pass)
        if (const OpCall* call = std::get_if<OpCall>(&n.call)) {
          if (const std::string why = backend.refusal(call->op); !why.empty())
            throw InputError(std::string(kind(call->op)),
                             fmt::format("cannot run on the {} backend: {}", backend.name(), why),
                             "--backend cpu, or another model; `moeplan ops` lists what each operator has");
          const auto* router = std::get_if<op::Router>(&call->op);
          if (router && router->score == RouterScore::sparse_mixer && options_.capacity_factor > 0 && options_.overflow == Overflow::reroute)
            throw InputError("overflow", "reroute: sparse_mixer weighs a choice among those before it, and has no weight for another expert", "drop_position or drop_probability");
        }
    note_block(b);
  }
  std::map<const Block*, CallScratch> copies;
  if (backend.wants_dense())
    for (const Block& b : program.blocks) copies.emplace(&b, dense_copies(b));
  arena_ = plan_arena(
      program, problem, [&](DType t) { return backend.held(t); }, plan.parallelism,
      [&](const Block& b, const BlockNode& n) {
        const OpCall& call = std::get<OpCall>(n.call);
        const Bytes own = is_view(call.op) ? Bytes{} : backend.workspace(call);
        return backend.wants_dense() ? own + copies.at(&b)(n) : own;
      },
      fetched_);
  memory_ = allocate_shared(arena_.size, "arena");
  if (arena_.host_size.value > 0) host_ = backend.allocate_host(arena_.host_size, "kept values in host memory");
  const std::int64_t tokens = tokens_here();
  if (tokens > (1 << 24))
    throw InputError("plan.micro_batch",
                     fmt::format("{} tokens in a micro-batch; row numbers are exact up to 2^24", tokens),
                     "a smaller micro-batch or sequence");
  hosted_ = plan.parallelism.ep > 1 || plan.parallelism.etp > 1 || options_.capacity_factor > 0;
  place_routers();
  for (auto [at, bytes] : {std::pair{&outside_.token_ids, 4 * tokens},
                           {&outside_.looked_up, 4 * tokens},
                           {&outside_.labels, 4 * tokens},
                           {&outside_.positions, 4 * tokens},
                           {&outside_.starts, 4 * tokens + 4},
                           {&outside_.long_starts, 8 * tokens + 8},
                           {&outside_.share, std::int64_t{4}},
                           {&outside_.loss, std::int64_t{4}}})
    *at = outside_.bytes, outside_.bytes += (bytes + 255) / 256 * 256;
  lanes_.resize(arena_.lanes.size());
  for (MicroBatchState& lane : lanes_) {
    lane.outside = backend.allocate({outside_.bytes}, "labels and boundaries");
    lane.tallies = backend.allocate({8 * tallies_}, "tallies of the routers");
    lane.kept_rows.resize(program.slots.size());
    lane.routes.resize(program.slots.size());
    lane.shared_counts.resize(program.slots.size());
  }
  gathered_.assign(program.slots.size(), -1);
  arriving_.resize(program.slots.size());
  fetching_.resize(program.slots.size());
  if (ranks_) place_staging();
  find_ways();
  register_memory();
}

void Walk::note_block(const Block& b) {
  BlockNotes notes;
  notes.columns.resize(b.values.size());
  notes.root_columns.resize(b.values.size(), 0);
  notes.cut.resize(b.values.size(), false);
  for (ValueId v = 0; v < static_cast<ValueId>(b.values.size()); ++v)
    if (whole_of(b, v) != v) notes.cut[index(whole_of(b, v))] = true;
  const auto is_split = [](const BlockNode& n) {
    const OpCall* c = std::get_if<OpCall>(&n.call);
    return c ? std::get_if<op::Split>(&c->op) : nullptr;
  };
  const auto view = [&](ValueId out, ValueId base, const op::Split& op, std::size_t which) {
    std::vector<std::int32_t> columns = piece_columns(op, which);
    const auto& of_base = notes.columns[index(base)];
    if (!of_base.empty())
      for (std::int32_t& c : columns) c = of_base[index(c)];
    notes.columns[index(out)] = std::move(columns);
    notes.root_columns[index(out)] = of_base.empty() ? split_columns(op) : notes.root_columns[index(base)];
  };
  std::map<WeightId, std::size_t> router_of;  // by the experts' weights
  std::map<ValueId, std::size_t> router_with;  // by the experts it chose
  std::size_t routers = 0;
  bool exchanges = false;
  const auto which_router = [&](const BlockNode& n, bool learn) -> RoutedCall {
    if (const CommCall* comm = std::get_if<CommCall>(&n.call)) {
      const bool rows = comm->collective == Collective::dispatch || comm->collective == Collective::combine ||
                        comm->group == Group::expert_tensor;
      exchanges |= rows;
      return {0, rows};
    }
    const OpCall* c = std::get_if<OpCall>(&n.call);
    if (!c) return {};
    if (std::holds_alternative<op::Router>(c->op)) {
      if (learn) {
        const Operands contract = operands(c->op);
        for (std::size_t o = 0; o < contract.size(); ++o)
          if (contract[o].name == "indices") router_with[n.operands[o]] = routers;
        router_of[n.weights.front()] = routers++;
      }
      return {router_of.at(n.weights.front()), true};
    }
    if (std::holds_alternative<op::Permute>(c->op)) {
      const auto router = c->pass == Pass::forward ? router_with.find(n.operands[1]) : router_with.end();
      return router == router_with.end() ? RoutedCall{} : RoutedCall{router->second, true};
    }
    if (std::holds_alternative<op::GroupedLinear>(c->op)) {
      if (learn) router_of[n.weights.front()] = routers - 1;
      return {router_of.at(n.weights.front()), true};
    }
    return {};
  };
  const auto routed = [&](const BlockNode& n, bool learn) {
    RoutedCall out = which_router(n, learn);
    out.piece = piece_of(b, n);
    if (OpCall call; std::holds_alternative<OpCall>(n.call) && out.piece < 0)
      call = std::get<OpCall>(n.call), out.by_piece = rows_of_routed(call.op) && std::any_of(n.reads.begin(), n.reads.end(), [&](ValueId v) { return piece_of(b, v) >= 0; });
    return out;
  };
  for (const BlockNode& n : b.forward) {
    if (const op::Split* split = is_split(n))
      for (std::size_t w = 0; w < n.writes.size(); ++w) view(n.writes[w], n.reads.front(), *split, w);
    notes.forward.push_back(routed(n, true));
  }
  for (const BlockNode& n : b.backward) {
    notes.backward.push_back(routed(n, false));
    if (const CommCall* comm = std::get_if<CommCall>(&n.call); comm && comm->collective == Collective::from_host)
      for (std::size_t w = 0; w < n.writes.size(); ++w)  // what came back is cut up as it was
        notes.columns[index(n.writes[w])] = notes.columns[index(n.operands[w])],
        notes.root_columns[index(n.writes[w])] = notes.root_columns[index(n.operands[w])];
    const op::Split* split = is_split(n);
    if (!split) continue;
    for (std::size_t w = 0; w + 1 < split->operands().size(); ++w) notes.pieces[&n].push_back(piece_columns(*split, w));
    if (n.recompute) {
      for (std::size_t w = 0; w < n.writes.size(); ++w) view(n.writes[w], n.reads.front(), *split, w);
      continue;
    }
    for (std::size_t o = 1; o < n.gradients.size(); ++o)
      if (const ValueId g = n.gradients[o];
          g >= 0 && b.alias[index(g)] == n.writes.front() && notes.columns[index(g)].empty())
        view(g, n.writes.front(), *split, o - 1);
  }
  for (const BlockNode& n : b.weight_backward) notes.weight_backward.push_back(routed(n, false));
  if (exchanges && routers != 1)
    throw InputError(b.name, fmt::format("has {} routers beside expert parallelism, which is priced, not run", routers),
                     "ep = etp = 1");
  notes.gathered = gather_layout(b, plan_.parallelism, [&](DType t) { return backend_.held(t); }, fetched_);
  // A gradient that is a piece of a piece would lie in two buffers.
  for (std::size_t v = b.forward_values; v < b.values.size(); ++v)
    if (b.alias[index(b.alias[v])] != b.alias[v])
      throw std::logic_error("a view of a view among the gradients of " + b.name);
  notes_.push_back(std::move(notes));
}

bool Walk::ends_model() const { return program_.chunks.back().leaving.value == 0; }

void Walk::tell(const char* phase) {
  if (progress_) progress_->set_phase(phase);
}

/// Until the device is done. With others, first what they take part in: that wait has a limit and names who is missing.
void Walk::settle() {
  if (ranks_) ranks_->wait();
  backend_.wait();
}

void Walk::node(const Instance& i, const BlockNode& n, const RoutedCall& routed, const PassPlacement& place,
                std::int32_t workspace, MicroBatchState& state) {
  if (const CommCall* comm = std::get_if<CommCall>(&n.call); comm && is_host_copy(comm->collective)) return copy_kept(i, n, place);
  land(block_of(i.slot), &n);
  meet_copies(i, n, place, workspace);
  if (clock_ && std::exchange(waited_, false)) timed_.emplace_back(&i, &wait_), backend_.stamp();
  if (std::holds_alternative<OpCall>(n.call))
    compute(i, n, routed, place, workspace, state);
  else if (std::holds_alternative<CommCall>(n.call))
    apart([&] { communicate(i, n, routed, place, state); });
  if (clock_) timed_.emplace_back(&i, &n), backend_.stamp();
}

/// Gradients of stored blocks and shared values meet those that other slots have sent.
void Walk::add_carried(const Instance& i) {
  for (const CarriedSum& s : arena_.lane(i.micro_batch).slots[index(i.slot)].sums) {
    const Shape shape{arena_.buffers[index(s.to)].bytes.value / plain_bytes(backend_.held(DType::bf16))};
    backend_.add(buffer_view(s.from, DType::bf16, shape), buffer_view(s.to, DType::bf16, shape), 1);
  }
}

void Walk::pass(const Instance& i, MicroBatchState& state) {
  const SlotPlacement& place = arena_.lane(i.micro_batch).slots[index(i.slot)];
  const Block& b = block_of(i.slot);
  const BlockNotes& notes = notes_of(i.slot);
  flush_sends();
  await_weights(i.slot);
  if (i.phase == Phase::forward) {
    tell("forward");
    if (i.slot == program_.chunks.front().first && !program_.chunks.front().receives) {
      const std::int64_t tokens = tokens_here();
      claim(place.forward.values[index(b.inputs.front())]);
      backend_.copy(outside_view(state, outside_.looked_up, DType::i32, tokens),
                    value_view(i.slot, place.forward, b.inputs.front(), {tokens}, state));
    }
    begin_clock();
    for (std::size_t n = 0; n < b.forward.size(); ++n)
      node(i, b.forward[n], notes.forward[n], place.forward, place.forward.workspace[n], state);
    land(b, nullptr);
  } else if (i.phase == Phase::weight_backward) {
    tell("backward of weights");
    begin_clock();
    for (std::size_t n = 0; n < b.weight_backward.size(); ++n)
      node(i, b.weight_backward[n], notes.weight_backward[n], place.backward,
           place.backward.workspace[b.backward.size() + n], state);
    land(b, nullptr);
    add_gradients(i, state);
  } else {
    tell("backward");
    if (index(i.slot) + 1 == program_.slots.size() && ends_model())
      for (const ValueId g : b.output_grads)
        if (g >= 0) {
          claim(place.backward.values[index(g)]);
          backend_.copy(outside_view(state, outside_.share, DType::f32, 1),
                        value_view(i.slot, place.backward, g, {1}, state));
        }
    begin_clock();
    for (std::size_t n = 0; n < b.backward.size(); ++n)
      node(i, b.backward[n], notes.backward[n], place.backward, place.backward.workspace[n], state);
    land(b, nullptr);
    add_carried(i);
    if (b.weight_backward.empty()) add_gradients(i, state);
  }
}

void Walk::begin(MicroBatchState& state, const Batch& batch, float share, float balance_share) {
  if (clock_) backend_.time_copies(true);
  state.batch = &batch;
  state.share = share;
  state.balance_share = balance_share;
  state.result = {};
  feed(state);
}

void Walk::step(std::size_t at, MicroBatchState& state) {
  const Instance& i = program_.instances[at];
  switch (i.phase) {
    case Phase::gather:
      tell("gather");
      apart([&] { gather_weights(i, arena_.gathered[at]); });
      break;
    case Phase::release:
      await_weights(i.slot);  // if nobody has used them
      gathered_[index(i.slot)] = -1;
      break;
    case Phase::forward:
      pass(i, state);
      if (index(i.slot) + 1 == program_.slots.size() && ends_model())
        backend_.copy(value_view(i.slot, arena_.lane(i.micro_batch).slots[index(i.slot)].forward,
                                 block_of(i.slot).outputs.front(), {1}, state),
                      outside_view(state, outside_.loss, DType::f32, 1));
      break;
    case Phase::backward:
    case Phase::weight_backward:
      pass(i, state);
      break;
    case Phase::reduce:
      tell("backward reduce");
      apart([&] { reduce_gradients(i, state); });
      break;
    case Phase::send_receive:
      tell("pipeline exchange");
      apart([&] { message(at); });
      break;
    default:
      break;
  }
}

/// What a backend can record it queues in one piece from the second time on: nothing that is queued depends on the
/// batch but by the numbers in memory and by how many sequences are packed.
void Walk::queue(std::int32_t micro_batch, const Batch& batch, const std::function<void()>& work) {
  if (ranks_ || observer_ || hosted_) return work();
  std::vector<std::int64_t> what;
  for (std::size_t at = 0; at < program_.instances.size(); ++at)
    if (const Instance& i = program_.instances[at]; i.micro_batch == micro_batch)
      what.insert(what.end(), {static_cast<std::int64_t>(i.phase), i.slot, arena_.gathered[at]});
  Recorded& known = recorded_[{std::move(what), batch.starts.size()}];
  if (!known.performed) {
    known.performed = true;
    return work();
  }
  if (clock_) {  // with the stamps in it, for this time
    const Backend::Recording timed = backend_.record(work);
    if (!timed) return timed_.clear(), timed_copies_.clear(), work();
    return timed();
  }
  if (!known.play && recordings_ < kMostRecordings) known.play = backend_.record(work), ++recordings_;
  if (known.play)
    known.play();
  else
    work();
}

float Walk::run(std::int32_t micro_batch, const Batch& batch, float share, float balance_share) {
  if (micro_batch == 0) clocked_ = 0;
  MicroBatchState& state = lanes_.size() == 1 ? lanes_.front() : lanes_[index(micro_batch)];
  begin(state, batch, share, balance_share);
  tell("forward");
  queue(micro_batch, batch, [&] {
    begin_clock();  // before the first copy, whose times count from here
    for (std::size_t at = 0; at < program_.instances.size(); ++at)
      if (program_.instances[at].micro_batch == micro_batch) step(at, state);
    settle_copies();
  });
  tell_clock();
  finish(state);
  return state.result.loss;
}

std::vector<MicroBatchResult> Walk::run_all(std::span<const Batch> batches, std::span<const float> shares,
                                            std::span<const float> balance_shares) {
  if (balance_shares.empty()) balance_shares = shares;
  step_routes_.clear();
  given_sums_ = 0;
  std::vector<MicroBatchResult> out;
  if (plan_.parallelism.pp == 1) {
    for (std::size_t j = 0; j < batches.size(); ++j) {
      (void)run(static_cast<std::int32_t>(j), batches[j], shares[j], balance_shares[j]);
      out.push_back(lanes_.front().result);
    }
    return out;
  }
  clocked_ = 0;
  for (std::size_t j = 0; j < batches.size(); ++j) begin(lanes_[j], batches[j], shares[j], balance_shares[j]);
  begin_clock();
  for (std::size_t at = 0; at < program_.instances.size(); ++at)
    if (const std::int32_t j = program_.instances[at].micro_batch; j >= 0) step(at, lanes_[index(j)]);
  flush_sends();
  settle_copies();
  tell_clock();
  for (MicroBatchState& lane : lanes_) {
    finish(lane);
    out.push_back(lane.result);
  }
  return out;
}

float Walk::evaluate(const Batch& batch) {
  if (plan_.parallelism.pp > 1) throw std::logic_error("an evaluation over several stages");
  MicroBatchState& state = lanes_.front();
  const Clock clock = std::exchange(clock_, nullptr);  // only steps are timed
  begin(state, batch, 1, 1);
  for (std::size_t at = 0; at < program_.instances.size() && program_.instances[at].phase != Phase::backward; ++at)
    if (program_.instances[at].micro_batch == 0) step(at, state);
  for (std::int32_t slot = 0; slot < static_cast<std::int32_t>(gathered_.size()); ++slot) await_weights(slot);  // what came ahead for a backward pass
  std::fill(gathered_.begin(), gathered_.end(), -1);
  settle_copies();
  finish(state);
  clock_ = clock;
  return state.result.loss;
}

}  // namespace moeplan
