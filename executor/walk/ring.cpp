/// Attention over keys and values that come round a ring of context ranks. At step i a rank has those of rank r - i. A
/// run of queries sees a run of keys that lies before it whole, itself causally, and a later one not at all; partial
/// results y with log-sum-exp l join as y = sum_p e^(l_p - l) y_p, l = log sum_p e^(l_p). Backward each pair of runs
/// takes the final y and l, so that its gradients are its share of the whole.

#include <algorithm>
#include <cmath>

#include "executor/backend/convert.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {
/// Keys and values, or sums of their gradients, go to the next rank.
void Walk::pass_round(const Instance& i, const BlockNode& n, const PassPlacement& at, MicroBatchState& state) {
  const Block& b = block_of(i.slot);
  Communicator& group = ranks_->need(Group::context);
  const auto view = [&](ValueId v) { return value_view(i.slot, at, v, b.values[index(v)].shape, state); };
  std::vector<Transfer> sends, receives;
  std::vector<std::pair<TensorView, TensorView>> arrived;  // where it lands, where it belongs
  std::int64_t used = 0;
  const int next = (group.rank() + 1) % group.size(), last = (group.rank() + group.size() - 1) % group.size();
  for (std::size_t v = 0; v < n.reads.size(); ++v) {
    const TensorView from = view(n.reads[v]), to = view(n.writes[v]);
    const Wire wire = wire_of(from.dtype);
    const auto staged = [&] {
      const TensorView t{staging_.get() + used, from.dtype, from.shape};
      used += from.shape.elements() * plain_bytes(from.dtype);
      return t;
    };
    const TensorView out = staged(), in = staged();
    backend_.copy(from, out);
    sends.push_back({out.data, out.shape.elements() * wire.per_element, wire.dtype, next});
    receives.push_back({in.data, in.shape.elements() * wire.per_element, wire.dtype, last});
    arrived.emplace_back(in, to);
  }
  after_compute(group, backend_);
  group.send_receive(sends, receives);
  before_compute(group, backend_);
  for (const auto& [in, to] : arrived) backend_.copy(in, to);
}

/// Calls f(first row of queries, first row of keys, rows, whether they are the same run) for each pair of runs that see
/// each other when this rank has the keys of rank `source`; a run's own keys come first.
template <class F>
void Walk::each_pair(std::int64_t source, std::int64_t rows, const F& f) {
  const ContextRuns dealt = context_runs_of(problem_, plan_);
  const std::int64_t mine = ranks_->place().index(Group::context), length = rows / (dealt.sequences * dealt.per_rank);
  for (const bool own : {true, false})
    for (std::int64_t s = 0; s < dealt.sequences; ++s)
      for (std::int64_t j = 0; j < dealt.per_rank; ++j)
        for (std::int64_t k = 0; k < dealt.per_rank; ++k) {
          const std::int64_t q = dealt.run(mine, j), keys = dealt.run(source, k);
          if ((q == keys) == own && keys <= q)
            f((s * dealt.per_rank + j) * length, (s * dealt.per_rank + k) * length, length, own);
        }
}

/// One step of the ring: partial attention of this rank's queries, or its gradients. A sum of gradients is one too.
void Walk::ring_step(const Instance& i, const BlockNode& n, const PassPlacement& at, MicroBatchState& state) {
  const Block& b = block_of(i.slot);
  const OpCall& lowered = std::get<OpCall>(n.call);
  const auto view = [&](ValueId v) { return value_view(i.slot, at, v, b.values[index(v)].shape, state); };
  if (std::holds_alternative<op::Add>(lowered.op))  // what has come round meets this rank's part, where that lies
    return backend_.add(view(n.reads[0]), view(n.writes[0]), 1);
  const auto& attention = std::get<op::Attention>(lowered.op);
  ring_at_ = attention.causal ? 0 : ring_at_ + 1;
  const std::int64_t ranks = plan_.parallelism.cp,
                     source = (ranks_->place().index(Group::context) - ring_at_ + ranks) % ranks;
  const std::size_t parts = attention.shared_key > 0 ? 3 : 2;
  std::vector<TensorView> keys;
  for (std::size_t p = 0; p < parts; ++p) keys.push_back(view(n.reads[1 + p]));
  const TensorView q = view(n.reads[0]);
  const std::int64_t rows = q.shape.elements() / width_of(q);
  const auto cut = [&](const TensorView& t, std::int64_t first, std::int64_t count) {
    return part_of(t, first, count, 0, width_of(t));
  };
  const auto of_pair = [&](std::int64_t length, bool own) {
    op::Attention call = attention;
    call.tokens = call.sequence_length = length;
    call.causal = own;
    call.sinks = call.sinks && own && lowered.pass == Pass::forward;  // a sink joins once, with a run's own keys
    return call;
  };
  if (lowered.pass == Pass::forward) {
    const TensorView y = view(n.writes[0]), lse = view(n.writes[1]);
    return each_pair(source, rows, [&](std::int64_t at_q, std::int64_t at_k, std::int64_t length, bool own) {
      taken_ = 0;
      std::vector<TensorView> views{cut(q, at_q, length)}, none(parts + 4);
      for (const TensorView& k : keys) views.push_back(cut(k, at_k, length));
      const TensorView y_here = cut(y, at_q, length), lse_here = cut(lse, at_q, length);
      const TensorView y_part = own ? y_here : take(y.dtype, length, width_of(y)),
                       lse_part = own ? lse_here : take(DType::f32, length, attention.heads);
      if (attention.sinks && own) views.push_back(weight_view(i.slot, n.weights.front()));
      views.push_back(y_part), views.push_back(lse_part);
      backend_.call({of_pair(length, own), Pass::forward, {}}, views, none, {});
      if (!own) join(attention, y_here, lse_here, y_part, lse_part);
    });
  }
  const std::size_t rest = 1 + parts;
  const TensorView y = view(n.reads[rest]), lse = view(n.reads[rest + 1]), dy = view(n.reads[rest + 2]);
  const bool wants_q = n.writes.size() > parts;
  if (n.writes.size() != parts + (wants_q ? 1 : 0))
    throw std::logic_error("a ring of which some keys have a gradient and some have not, in " + b.name);
  std::vector<TensorView> sums;
  for (const ValueId w : n.writes) sums.push_back(view(w));
  for (std::size_t w = 0; w < sums.size(); ++w)
    if (w > 0 || !wants_q || ring_at_ == 0) backend_.clear(sums[w]);
  each_pair(source, rows, [&](std::int64_t at_q, std::int64_t at_k, std::int64_t length, bool own) {
    taken_ = 0;
    std::vector<TensorView> views{cut(q, at_q, length)}, gradients{take(q.dtype, length, width_of(q))};
    for (const TensorView& k : keys) {
      views.push_back(cut(k, at_k, length));
      gradients.push_back(take(k.dtype, length, width_of(k)));
    }
    for (const TensorView* t : {&y, &lse}) views.push_back(cut(*t, at_q, length));
    gradients.push_back(cut(dy, at_q, length)), gradients.emplace_back();
    backend_.call({of_pair(length, own), Pass::backward, {true, false}}, views, gradients, {});
    for (std::size_t w = 0; w < sums.size(); ++w) {
      const std::size_t of = wants_q ? w : w + 1;
      backend_.add(gradients[of], cut(sums[w], of == 0 ? at_q : at_k, length), 1);
    }
  });
}

/// y and lse of the keys so far, joined with those of further ones.
void Walk::join(const op::Attention& attention, const TensorView& y, const TensorView& lse, const TensorView& y_part,
                const TensorView& lse_part) {
  const auto count = static_cast<std::size_t>(lse.shape.elements());
  std::vector<float> a(count), c(count), whole(count);
  settle();
  backend_.read(lse, a), backend_.read(lse_part, c);
  for (std::size_t e = 0; e < count; ++e) {
    const float most = std::max(a[e], c[e]);
    whole[e] = most + std::log(std::exp(a[e] - most) + std::exp(c[e] - most));
    a[e] = std::exp(a[e] - whole[e]), c[e] = std::exp(c[e] - whole[e]);
  }
  backend_.write(lse, whole);
  const std::int64_t rows = lse.shape.elements() / attention.heads;
  const op::MulGate weigh{.tokens = rows,
                          .width = attention.heads * attention.d_v,
                          .gate_width = attention.heads,
                          .function = op::GateFunction::identity,
                          .gate = DType::f32};
  const std::vector<TensorView> none(3);
  const TensorView weights = take(DType::f32, rows, attention.heads), before = take(y.dtype, rows, weigh.width),
                   after = take(y.dtype, rows, weigh.width);
  backend_.write(weights, a);
  backend_.call({weigh, Pass::forward, {}}, std::vector<TensorView>{y, weights, before}, none, {});
  backend_.write(weights, c);
  backend_.call({weigh, Pass::forward, {}}, std::vector<TensorView>{y_part, weights, after}, none, {});
  backend_.add(before, after, 1);
  backend_.copy(after, y);
}

}  // namespace moeplan
