/// Indexers and attention over selected keys on context ranks: the keys of all ranks are there in the order of the
/// sequence, and a run of queries sees those up to its own end. Each run is a call of its own on that many keys; an
/// index counts keys from the start of its sequence.

#include "executor/walk/walk.hpp"

namespace moeplan {
namespace {

/// The call for one run of `rows` queries that ends `until` tokens into its sequence, and the keys that it reads.
std::pair<Op, std::int64_t> of_run(const Op& op, std::int64_t rows, std::int64_t until) {
  if (auto indexer = std::get_if<op::Indexer>(&op)) {
    op::Indexer call = *indexer;
    call.tokens = rows, call.sequence_length = call.kv_tokens = until;
    return {call, call.keys()};
  }
  op::SparseAttention call = std::get<op::SparseAttention>(op);
  call.tokens = rows, call.sequence_length = call.kv_tokens = until;
  return {call, until};
}

}  // namespace

bool Walk::selects_keys(const Op& op) {
  return std::holds_alternative<op::Indexer>(op) || std::holds_alternative<op::SparseAttention>(op);
}

void Walk::call_by_runs(const OpCall& call, const std::vector<TensorView>& views,
                        const std::vector<TensorView>& gradients) {
  const ContextRuns dealt = context_runs_of(problem_, plan_);
  const Operands contract = operands(call.op);
  const auto is_key = [&](std::size_t o) {
    return contract[o].name == "k" || contract[o].name == "kv" || contract[o].name == "v";
  };
  const auto rows_in = [](const TensorView& t) { return t.shape.elements() / width_of(t); };
  for (std::size_t o = 0; o < contract.size(); ++o)
    if (call.pass == Pass::backward && is_key(o) && gradients[o].present()) backend_.clear(gradients[o]);
  const std::int64_t length = tokens_here() / (dealt.sequences * dealt.per_rank);
  for (std::int64_t s = 0; s < dealt.sequences; ++s)
    for (std::int64_t j = 0; j < dealt.per_rank; ++j) {
      const std::int64_t g = dealt.run(ranks_->place().index(Group::context), j);
      const auto [op, keys] = of_run(call.op, length, (g + 1) * length);
      taken_ = 0;
      std::vector<TensorView> here(contract.size()), d(contract.size());
      const auto cut = [&](std::size_t o, const TensorView& t) {
        if (!is_key(o)) return part_of(t, (s * dealt.per_rank + j) * length, length, 0, width_of(t));
        return part_of(t, s * (rows_in(t) / dealt.sequences), keys, 0, width_of(t));
      };
      for (std::size_t o = 0; o < contract.size(); ++o) {
        if (contract[o].role == Role::weight) {
          here[o] = views[o];
          continue;
        }
        if (views[o].present()) here[o] = cut(o, views[o]);
        if (gradients[o].present())
          d[o] = is_key(o) ? take(gradients[o].dtype, keys, width_of(gradients[o])) : cut(o, gradients[o]);
      }
      backend_.call({op, call.pass, call.wants}, here, d, {});
      for (std::size_t o = 0; o < contract.size(); ++o)
        if (is_key(o) && d[o].present()) backend_.add(d[o], cut(o, gradients[o]), 1);
    }
}

}  // namespace moeplan
