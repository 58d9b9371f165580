/// What tensor ranks do differently from one rank: each looks up its part of the vocabulary, the loss is put together
/// from theirs, and what is said of a micro-batch's routing is of the tokens of all that share it.

#include <bit>
#include <cmath>

#include "executor/backend/convert.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {
/// Ids or labels as this rank's part of the vocabulary sees them: its own count from its first row, others lie beyond
/// its last. Negative ones stay.
std::vector<std::int32_t> Walk::of_part(std::vector<std::int32_t> ids) const {
  const std::int64_t ranks = plan_.parallelism.tp;
  if (ranks == 1) return ids;
  const std::int64_t rows = problem_.model.vocabulary / ranks, first = ranks_->place().index(Group::tensor) * rows;
  for (std::int32_t& id : ids)
    if (id >= 0) id = static_cast<std::int32_t>(id >= first && id < first + rows ? id - first : rows);
  return ids;
}

/// Of a feed, what this rank's call reads: all of it, or its share of the tokens.
TensorView Walk::own_share(TensorView feed, std::int64_t elements) const {
  if (!ranks_ || elements == feed.shape.elements()) return feed;
  if (backend_.name() != "null") feed.data += ranks_->place().index(Group::tensor) * elements * plain_bytes(feed.dtype);
  feed.shape = {elements};
  return feed;
}

/// With l_r(t) the log-sum-exp over rank r's logits, l(t) that over all, and loss_r = mean (l_r - z_y where rank r has
/// the label's logit), the loss is sum_r loss_r + mean (l - sum_r l_r). What backward reads becomes l.
void Walk::merge_loss(const Instance& i, const BlockNode& n, const PassPlacement& place, MicroBatchState& state) {
  const Block& b = block_of(i.slot);
  const BlockNode* head = nullptr;
  for (const BlockNode& each : b.forward)
    if (const OpCall* call = std::get_if<OpCall>(&each.call);
        call && std::holds_alternative<op::CrossEntropy>(call->op))
      head = &each;
  const auto& call = std::get<op::CrossEntropy>(std::get<OpCall>(head->call).op);
  const Operands contract = call.operands();
  ValueId logs = -1;
  for (std::size_t o = 0; o < contract.size(); ++o)
    if (contract[o].name == "lse") logs = head->operands[o];
  const TensorView loss = value_view(i.slot, place, n.writes.front(), {1}, state),
                   sums = value_view(i.slot, place, logs, {call.tokens}, state);
  Communicator& group = ranks_->need(Group::tensor);
  const std::int64_t part = call.tokens + 1, ranks = group.size();
  const auto at = [&](std::int64_t first, std::int64_t count) {
    return TensorView{staging_.get() + 4 * first, DType::f32, {count}};
  };
  backend_.copy(sums, at(group.rank() * part, call.tokens));
  backend_.copy(loss, at(group.rank() * part + call.tokens, 1));
  after_compute(group, backend_);
  group.all_gather(at(group.rank() * part, part).data, staging_.get(), part, DType::f32);
  before_compute(group, backend_);
  std::vector<float> all(static_cast<std::size_t>(part * ranks)), merged(static_cast<std::size_t>(call.tokens));
  settle();
  backend_.read(at(0, part * ranks), all);
  double whole = 0, change = 0;
  for (std::int64_t r = 0; r < ranks; ++r)
    whole += static_cast<double>(all[static_cast<std::size_t>((r + 1) * part - 1)]);
  std::int64_t labelled = 0;
  for (std::int64_t t = 0; t < call.tokens; ++t) {
    double most = -INFINITY, sum = 0, apart = 0;
    const auto of = [&](std::int64_t r) { return static_cast<double>(all[static_cast<std::size_t>(r * part + t)]); };
    for (std::int64_t r = 0; r < ranks; ++r) most = std::max(most, of(r));
    for (std::int64_t r = 0; r < ranks; ++r) sum += std::exp(of(r) - most), apart += of(r);
    const double both = most + std::log(sum);
    merged[static_cast<std::size_t>(t)] = static_cast<float>(both);
    if (state.batch->labels[static_cast<std::size_t>(t)] < 0) continue;
    ++labelled;
    change += both - apart;
  }
  if (labelled > 0) whole += change / static_cast<double>(labelled);
  backend_.write(sums, merged);
  backend_.write(loss, std::array{static_cast<float>(whole)});
}

/// Ranks that work on one micro-batch's tokens together.
std::int64_t Walk::sharers() const {
  return ranks_ ? static_cast<std::int64_t>(plan_.parallelism.tp) * plan_.parallelism.cp : 1;
}

/// The choices of all tokens of the micro-batch, where others hold some of them: the balancing loss is of all.
void Walk::share_counts(std::int32_t slot, std::size_t ordinal, MicroBatchState& state) {
  const RouterAt& router = router_at(slot, ordinal);
  std::vector<float> counts(static_cast<std::size_t>(router.choices()));
  settle();
  backend_.read(tally_view(state, router, false, router.choices()), counts);
  const auto all = sum_over_sharers(std::vector<double>(counts.begin(), counts.end()));
  auto& mine = state.shared_counts[index(slot)];
  mine.resize(std::max(mine.size(), ordinal + 1));
  mine[ordinal].assign(all.begin(), all.end());
}

std::vector<double> Walk::sum_over_sharers(std::vector<double> values) {
  for (const Group group : {Group::tensor, Group::context})
    if (ranks_ && ranks_->of(group)) values = sum_over_ranks(*ranks_->of(group), values);
  return values;
}

}  // namespace moeplan
