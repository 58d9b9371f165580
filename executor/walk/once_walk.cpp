/// The walk's side of tokens that go once to each rank: who wants which, and where the calls' operands are.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "executor/ranks/runnable.hpp"
#include "executor/walk/capacity.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {

/// The buffer of exchanges and reductions, and what is kept of the ways of tokens that go once. Copies go by themselves where the program says so,
/// whatever the runtime: those of a rank alone, and of blocks that `exchanged_once` leaves as they are.
void Walk::place_staging() {
  const HeldType held = [this](DType t) { return backend_.held(t); };
  const auto of_copies = [](const BlockNode& n) {
    const CommCall* comm = std::get_if<CommCall>(&n.call);
    return comm && comm->group == Group::expert && n.operands.empty();
  };
  if (tokens_go_once(problem_, plan_, options_)) staged_ = moeplan::staging(program_, problem_, plan_, held);
  if (staged_.ways.value == 0 || std::any_of(program_.blocks.begin(), program_.blocks.end(), [&](const Block& b) { return std::any_of(b.forward.begin(), b.forward.end(), of_copies); })) {
    Problem apart = problem_;
    apart.runtime.deduplicated_dispatch = false;
    staged_.buffer = std::max(staged_.buffer, moeplan::staging(program_, apart, plan_, held).buffer);
  }
  staging_ = allocate_shared(staged_.buffer, "exchange and reduction buffer");
  for (std::size_t slot = 0; slot < program_.slots.size() && staged_.ways.value > 0; ++slot) {
    const Block& b = block_of(static_cast<std::int32_t>(slot));
    for (const BlockNode& n : b.forward) {
      const CommCall* comm = std::get_if<CommCall>(&n.call);
      if (!comm || comm->collective != Collective::dispatch) continue;
      const OnceBytes most = once_bytes(b, n, problem_, plan_, held);
      for (MicroBatchState& lane : lanes_) {
        OnceRoutes& once = lane.once[static_cast<std::int32_t>(slot)];
        once.most = most;
        once.memory = backend_.allocate(most.ways, "ways of tokens to experts");
      }
    }
  }
}

/// One hop to each rank, or two where the plan wants them and the expert group spans whole nodes.
void Walk::find_ways() {
  if (!ranks_ || !tokens_go_once(problem_, plan_, options_)) return;
  for (const Block& b : program_.blocks)
    for (const BlockNode& n : b.forward) {
      const CommCall* comm = std::get_if<CommCall>(&n.call);
      if (!comm || comm->collective != Collective::dispatch || n.operands.empty()) continue;
      const Shape& rows = b.values[index(n.writes.front())].shape;
      const std::int64_t width = rows[rows.rank - 1], top_k = comm->rows / std::max<std::int64_t>(1, comm->tokens);
      for (const Op& op :
           {Op{op::Permute{.tokens = comm->tokens, .top_k = top_k, .width = width, .experts = comm->experts}},
            Op{op::Combine{.tokens = comm->tokens, .top_k = top_k, .width = width}}})
        if (const std::string why = backend_.refusal(op); !why.empty())
          throw InputError(std::string(kind(op)), fmt::format("cannot run on the {} backend: {}", backend_.name(), why),
                           "--backend cpu, or another model; `moeplan ops` lists what each operator has");
    }
  const int node = ranks_of_a_node(problem_, plan_);
  if (node > 1) {
    ranks_->split_nodes(node);
    ways_ = {{ranks_->between_nodes(), node}, {ranks_->node(), 1}};
  } else {
    ways_ = {{&ranks_->need(Group::expert), 1}};
  }
}

/// Reads the router's choices and tells the others what is coming.
Routes Walk::learn_tokens(const Instance& i, const BlockNode& n, const PassPlacement& place, MicroBatchState& state) {
  const op::Router& router = router_at(i.slot, 0).op;
  const std::int64_t copies = router.tokens * router.top_k, rank = ranks_->need(Group::expert).rank();
  const auto numbers = [&](const TensorView& from) {
    std::vector<float> out(index(copies));
    if (copies > 0) backend_.read(from, out);
    return out;
  };
  const Shape shape{router.tokens, router.top_k};
  const std::vector<float> chosen =
      numbers(limits_by_host() ? TensorView{state.limited.at({i.slot, std::size_t{0}}).kept.get(), DType::i32, shape}
                               : value_view(i.slot, place, n.operands[1], shape, state));
  // Which slot each copy goes to: those of an expert in the order of the tokens, so many to each of its slots.
  std::vector<std::int64_t> rows(index(router.experts), 0), expert(index(copies), -1), number(index(copies), 0);
  for (std::int64_t c = 0; c < copies; ++c) {
    const auto e = static_cast<std::int64_t>(chosen[index(c)]);
    if (e < 0 || e >= router.experts) continue;
    if (options_.capacity_factor > 0 && !limits_by_host() &&
        rows[index(e)] >= expert_capacity(options_.capacity_factor, copies, router.experts))
      continue;
    expert[index(c)] = e, number[index(c)] = rows[index(e)]++;
  }
  std::vector<std::int64_t> in_order(index(router.experts));
  std::iota(in_order.begin(), in_order.end(), std::int64_t{0});
  const Slots placed = parameters_.slots(program_.slots[index(i.slot)].layer);
  const std::vector<std::int64_t>& slots = placed ? *placed : in_order;
  const std::vector<RowRun> runs = rows_of_slots(rows, slots, rank);
  std::vector<std::int64_t> first(rows.size(), 0);
  std::partial_sum(rows.begin(), rows.end() - 1, first.begin() + 1);
  std::vector<std::vector<std::int64_t>> of_expert(rows.size());
  for (std::size_t s = 0; s < slots.size(); ++s) of_expert[index(slots[s])].push_back(static_cast<std::int64_t>(s));
  std::vector<std::int64_t> wanted(index(copies), -1);
  for (std::int64_t c = 0; c < copies; ++c) {
    const std::int64_t e = expert[index(c)];
    if (e < 0) continue;
    const std::int64_t row = first[index(e)] + number[index(c)];
    for (const std::int64_t s : of_expert[index(e)])
      if (row >= runs[index(s)].from && row < runs[index(s)].from + runs[index(s)].count) wanted[index(c)] = s;
  }
  const std::int64_t local = static_cast<std::int64_t>(slots.size()) / plan_.parallelism.ep;
  std::vector<std::pair<Communicator*, std::int64_t>> ways = ways_;
  for (auto& [group, each] : ways) each *= local;
  OnceRoutes& once = state.once.at(i.slot);
  learn_once(once, ways, rank * local, local, router.tokens, router.top_k, std::move(wanted),
             numbers(value_view(i.slot, place, n.operands[2], shape, state)), backend_, staging_.get(), place_of(i));
  Routes out{.local_experts = local, .sent = {}, .received = {}, .rows_of_expert = once.rows_of_expert};
  for (const Hop& hop : once.hops) out.hops.push_back(hop.rows);
  return out;
}

void Walk::exchange_once(const Instance& i, const BlockNode& n, const PassPlacement& place, const TensorView& to,
                         MicroBatchState& state) {
  const bool dispatch = std::get<CommCall>(n.call).collective == Collective::dispatch,
             there = dispatch ? n.operands.size() == 3 : n.operands.size() == 1;
  tell(i.phase == Phase::forward ? (dispatch ? "forward dispatch" : "forward combine")
                                 : (dispatch ? "backward dispatch" : "backward combine"));
  const Block& b = block_of(i.slot);
  const auto value = [&](ValueId v) {
    return v < 0 ? TensorView{} : value_view(i.slot, place, v, b.values[index(v)].shape, state);
  };
  const TensorView first = value(n.operands[0]);
  if (dispatch && there && i.phase == Phase::forward) learn_routes(i, n, 0, place, to, state);
  OnceRoutes& once = state.once.at(i.slot);
  if (dispatch && there)
    dispatch_once(once, first, to, backend_, staging_.get());
  else if (dispatch)
    spread_once(once, first, value(n.operands[1]), to, value(n.gradients[0]), backend_, staging_.get());
  else if (there)
    combine_once(once, first, to, backend_, staging_.get());
  else
    collect_once(once, first, to, backend_, staging_.get());
  tell(i.phase == Phase::forward ? "forward" : "backward");
}

}  // namespace moeplan
