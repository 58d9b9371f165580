/// What only the data says: the batch in the backend's memory, and what its routers chose. Without expert ranks and
/// drops nothing of it comes to the host before the micro-batch is done: the experts' calls read the counts where the
/// router left them.

#include <algorithm>

#include "core/error.hpp"
#include "executor/backend/tally.hpp"
#include "executor/walk/capacity.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {
TensorView Walk::outside_view(const MicroBatchState& state, std::int64_t at, DType type, std::int64_t count) const {
  return {state.outside.get() + (backend_.name() == "null" ? 0 : at), type, {count}};
}

TensorView Walk::tally_view(const MicroBatchState& state, const RouterAt& router, bool shares,
                            std::int64_t count) const {
  const std::int64_t at = 4 * (router.first + (shares ? tallies_ : 0));
  return {state.tallies.get() + (backend_.name() == "null" ? 0 : at), shares ? DType::f32 : DType::i32, {count}};
}

const Walk::RouterAt& Walk::router_at(std::int32_t slot, std::size_t ordinal) const {
  return routers_.at(first_router_[index(slot)] + ordinal);
}

void Walk::place_routers() {
  for (std::int32_t slot = 0; slot < static_cast<std::int32_t>(program_.slots.size()); ++slot) {
    first_router_.push_back(routers_.size());
    for (const BlockNode& n : block_of(slot).forward)
      if (const OpCall* call = std::get_if<OpCall>(&n.call))
        if (const auto* router = std::get_if<op::Router>(&call->op)) {
          routers_.push_back({slot, *router, tallies_});
          tallies_ += routers_.back().choices();
        }
  }
}

std::span<const std::int64_t> Walk::rows_of_experts(std::int32_t slot, std::size_t ordinal, std::int64_t experts,
                                                    const MicroBatchState& state) const {
  if (plan_.parallelism.etp > 1) return state.routes[index(slot)].at(ordinal).rows_in_calls;
  if (plan_.parallelism.ep > 1) return state.routes[index(slot)].at(ordinal).rows_of_expert;
  return std::span(state.kept_rows[index(slot)])
      .subspan(ordinal * static_cast<std::size_t>(experts), static_cast<std::size_t>(experts));
}

/// Writes the batch to the backend's memory.
void Walk::feed(MicroBatchState& state) {
  const Batch& batch = *state.batch;
  const std::int64_t tokens = static_cast<std::int64_t>(batch.tokens.size());
  // What no document holds would be left unwritten by operators that work document by document.
  if (const auto& starts = batch.starts; !starts.empty() && (starts.front() != 0 || starts.back() != tokens || !std::is_sorted(starts.begin(), starts.end())))
    throw InputError("batch", "documents from " + std::to_string(starts.front()) + " to " + std::to_string(starts.back()) + " in a batch of " + std::to_string(tokens) + " tokens",
                     "boundaries ascend from 0 to the number of tokens");
  const auto floats = [](const auto& v) { return std::vector<float>(v.begin(), v.end()); };
  state.feeds.clear();
  const auto put = [&](const char* name, std::int64_t at, const std::vector<float>& values, DType type) {
    const TensorView view = outside_view(state, at, type, static_cast<std::int64_t>(values.size()));
    backend_.write(view, values);
    state.feeds[name] = view;
  };
  put("token_ids", outside_.token_ids, floats(batch.tokens), DType::i32);
  put("looked_up", outside_.looked_up, floats(of_part(batch.tokens)), DType::i32);
  put("labels", outside_.labels, floats(of_part(batch.labels)), DType::i32);
  std::vector<float> positions = floats(batch.positions);
  for (std::int64_t t = 0, begin = 0, next = 0; t < tokens && batch.positions.empty(); ++t) {
    if (batch.starts.empty())
      begin = t / problem_.workload.sequence_length * problem_.workload.sequence_length;
    else
      while (next < static_cast<std::int64_t>(batch.starts.size()) && batch.starts[static_cast<std::size_t>(next)] <= t)
        begin = batch.starts[static_cast<std::size_t>(next++)];
    positions.push_back(static_cast<float>(t - begin));
  }
  put("positions", outside_.positions, positions, DType::i32);
  if (!batch.starts.empty()) {
    put("starts", outside_.starts, floats(batch.starts), DType::i32);
    put("long_starts", outside_.long_starts, floats(batch.starts), DType::i64);
  }
  put("share", outside_.share, {state.share}, DType::f32);
}

/// Rows of an expert that has been chosen so often.
std::int64_t Walk::kept(const op::Router& op, std::int64_t choices) const {
  if (options_.capacity_factor <= 0) return choices;
  return std::min(choices, expert_capacity(options_.capacity_factor, op.tokens * op.top_k, op.experts));
}

/// The first in token order stay without the host: `permute` counts them.
bool Walk::limits_by_host() const {
  return options_.capacity_factor > 0 && options_.overflow != Overflow::drop_position;
}

/// Applies the overflow action to what a router has just decided.
void Walk::limit(std::int32_t slot, std::size_t ordinal, std::span<const TensorView> operands, MicroBatchState& state) {
  const RouterAt& router = router_at(slot, ordinal);
  const Operands contract = router.op.operands();
  const auto view = [&](std::string_view name) {
    for (std::size_t o = 0; o < contract.size(); ++o)
      if (contract[o].name == name) return operands[o];
    return TensorView{};
  };
  const auto numbers = [&](const TensorView& from) {
    std::vector<float> out(from.present() ? static_cast<std::size_t>(from.shape.elements()) : 0);
    if (!out.empty()) backend_.read(from, out);
    return out;
  };
  const std::vector<float> scores = numbers(view("scores")), bias = numbers(view("score_bias")), indices = numbers(view("indices"));
  std::vector<float> selection = scores;
  for (std::size_t i = 0; !bias.empty() && i < selection.size(); ++i) selection[i] += bias[i % bias.size()];
  Choices choices{.scores = scores, .selection = selection, .indices = {indices.begin(), indices.end()}, .weights = numbers(view("weights")), .zero_weight = numbers(view("zero_weight"))};
  const std::int64_t copies = router.op.tokens * router.op.top_k;
  const Overflowed done = apply_capacity(router.op, options_.overflow, expert_capacity(options_.capacity_factor, copies, router.op.experts), choices);
  if (done.moved > 0) {
    backend_.write(view("indices"), std::vector<float>(choices.indices.begin(), choices.indices.end()));
    backend_.write(view("weights"), choices.weights);
    if (view("zero_weight").present()) backend_.write(view("zero_weight"), choices.zero_weight);
  }
  auto& limited = state.limited[{slot, ordinal}];
  if (!limited.kept) limited.kept = backend_.allocate({4 * copies}, "experts of the copies");
  backend_.write({limited.kept.get(), DType::i32, {router.op.tokens, router.op.top_k}}, std::vector<float>(done.kept.begin(), done.kept.end()));
  limited.dropped = done.dropped;
  auto& mine = state.kept_rows[index(slot)];
  const std::size_t experts = done.rows.size();
  mine.resize(std::max(mine.size(), (ordinal + 1) * experts));
  std::copy(done.rows.begin(), done.rows.end(), mine.begin() + static_cast<std::ptrdiff_t>(ordinal * experts));
}

/// Keeps what a router has chosen until the micro-batch is done; where the host sizes the experts' calls it waits for
/// the counts.
void Walk::tally(std::int32_t slot, std::size_t ordinal, std::span<const TensorView> operands, MicroBatchState& state) {
  const RouterAt& router = router_at(slot, ordinal);
  keep_choice(backend_, router.op, operands, tally_view(state, router, false, router.choices()), tally_view(state, router, true, router.choices()));
  if (options_.auxiliary > 0 && sharers() > 1) share_counts(slot, ordinal, state);
  if (!hosted_) return;
  if (limits_by_host()) {
    settle();
    return limit(slot, ordinal, operands, state);
  }
  std::vector<float> counts(static_cast<std::size_t>(router.choices()));
  settle();
  backend_.read(tally_view(state, router, false, router.choices()), counts);
  auto& mine = state.kept_rows[index(slot)];
  const std::size_t experts = static_cast<std::size_t>(router.op.experts);
  mine.resize(std::max(mine.size(), (ordinal + 1) * experts));
  for (std::size_t e = 0; e < experts; ++e)
    mine[ordinal * experts + e] = kept(router.op, static_cast<std::int64_t>(counts[e]));
}

/// Reads what the micro-batch has left: the loss, and what the routers chose.
void Walk::finish(MicroBatchState& state) {
  settle();
  if (ends_model()) backend_.read(outside_view(state, outside_.loss, DType::f32, 1), std::span(&state.result.loss, 1));
  if (routers_.empty()) return;
  std::vector<float> counts(static_cast<std::size_t>(tallies_)), shares(counts.size());
  const RouterAt all{.slot = 0, .op = {}, .first = 0};
  backend_.read(tally_view(state, all, false, tallies_), counts);
  backend_.read(tally_view(state, all, true, tallies_), shares);
  const std::vector<double> all_counts = sum_over_sharers({counts.begin(), counts.end()}),
                            all_shares = sum_over_sharers({shares.begin(), shares.end()});
  for (const RouterAt& router : routers_) {
    RoutingReport report{.layer = program_.slots[index(router.slot)].layer, .counts = {}};
    double inner = 0;
    for (std::int64_t e = 0; e < router.choices(); ++e) {
      const auto at = static_cast<std::size_t>(router.first + e);
      const auto choices = static_cast<std::int64_t>(counts[at]);
      report.counts.push_back(static_cast<std::int64_t>(all_counts[at]));
      if (e < router.op.experts && !limits_by_host()) report.dropped += choices - kept(router.op, choices);
      inner += all_shares[at] * all_counts[at];
    }
    const auto ordinal = static_cast<std::size_t>(&router - &routers_[first_router_[index(router.slot)]]);
    if (const auto limited = state.limited.find({router.slot, ordinal}); limited != state.limited.end())
      report.dropped = limited->second.dropped;
    const double tokens = static_cast<double>(router.op.tokens * sharers()),
                 rows = tokens * static_cast<double>(router.op.top_k);
    if (rows > 0) report.balance = static_cast<double>(router.choices()) * inner / (rows * tokens);
    state.result.routing.push_back(std::move(report));
  }
}

}  // namespace moeplan
