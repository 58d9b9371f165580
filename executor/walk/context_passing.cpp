/// What context ranks pass to the ranks of the runs before and after theirs: rows, recurrent states, and the gradients
/// of both back.

#include <algorithm>
#include <utility>

#include "executor/backend/convert.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {
/// Forward: the last rows of each run go to the rank of the next one; the first run of a sequence gets zeros. Backward:
/// the gradients of those rows go back and are added to theirs.
void Walk::pass_rows(const Instance& i, const BlockNode& n, const PassPlacement& at, MicroBatchState& state) {
  const Block& b = block_of(i.slot);
  Communicator& group = ranks_->need(Group::context);
  const ContextRuns dealt = context_runs_of(problem_, plan_);
  const auto view = [&](ValueId v) { return value_view(i.slot, at, v, b.values[index(v)].shape, state); };
  const std::size_t values = n.writes.size();
  const bool back = n.reads.size() == 2 * values;
  std::vector<TensorView> edges, wholes;
  for (std::size_t v = 0; v < values; ++v) {
    edges.push_back(view(back ? n.reads[v] : n.writes[v]));
    wholes.push_back(view(back ? n.reads[values + v] : n.reads[v]));
  }
  struct Piece {
    TensorView edge, tail, sent, arrived;
    std::int64_t to = -1, from = -1;  ///< ranks; -1: nobody
  };
  std::vector<Piece> pieces;
  std::int64_t used = 0;
  const std::int64_t runs = dealt.sequences * dealt.per_rank, all = dealt.ranks * dealt.per_rank;
  for (std::size_t v = 0; v < values; ++v) {
    const std::int64_t width = width_of(edges[v]), rows = edges[v].shape.elements() / width / runs,
                       length = wholes[v].shape.elements() / width / runs;
    for (std::int64_t s = 0; s < dealt.sequences; ++s)
      for (std::int64_t j = 0; j < dealt.per_rank; ++j) {
        const std::int64_t r = s * dealt.per_rank + j, g = dealt.run(group.rank(), j),
                           after = g + 1 < all ? dealt.owner(g + 1) : -1, before = g > 0 ? dealt.owner(g - 1) : -1;
        const auto stage = [&] {
          const TensorView t{staging_.get() + used, edges[v].dtype, {rows, width}};
          used += rows * width * plain_bytes(t.dtype);
          return t;
        };
        pieces.push_back({part_of(edges[v], r * rows, rows, 0, width),
                          part_of(wholes[v], (r + 1) * length - rows, rows, 0, width), stage(), stage(),
                          back ? before : after, back ? after : before});
      }
  }
  // Of one run's rows `out` leave and `in` arrive: forward tails leave and edges arrive.
  std::vector<Transfer> sends, receives;
  const auto transfer = [](const TensorView& t, std::int64_t peer) {
    const Wire wire = wire_of(t.dtype);
    return Transfer{t.data, t.shape.elements() * wire.per_element, wire.dtype, static_cast<int>(peer)};
  };
  for (Piece& p : pieces) {
    const bool leaves = p.to >= 0;
    if (leaves) backend_.copy(back ? p.edge : p.tail, p.sent);
  }
  for (const Piece& p : pieces) {
    if (p.to >= 0 && p.to != group.rank()) sends.push_back(transfer(p.sent, p.to));
    if (p.from >= 0 && p.from != group.rank()) receives.push_back(transfer(p.arrived, p.from));
  }
  // Between two runs of one rank nothing travels.
  for (std::size_t k = 0; k < pieces.size(); ++k)
    for (std::size_t m = 0; m < pieces.size(); ++m)
      if (pieces[k].to == group.rank() && follows(dealt, group.rank(), k, m, back))
        backend_.copy(pieces[k].sent, pieces[m].arrived);
  after_compute(group, backend_);
  group.send_receive(sends, receives);
  before_compute(group, backend_);
  for (const Piece& p : pieces) {
    if (back && p.from >= 0) backend_.add(p.arrived, p.tail, 1);
    if (!back && p.from >= 0) backend_.copy(p.arrived, p.edge);
    if (!back && p.from < 0) backend_.clear(p.edge);
  }
}

/// Whether piece `to` is of the run that comes right after (backward: before) that of piece `from`, in the same
/// sequence of the same value.
bool Walk::follows(const ContextRuns& dealt, std::int64_t rank, std::size_t from, std::size_t to, bool back) {
  const auto n = static_cast<std::size_t>(dealt.per_rank);
  if (from / n != to / n) return false;
  const std::int64_t a = dealt.run(rank, static_cast<std::int64_t>(from % n)),
                     c = dealt.run(rank, static_cast<std::int64_t>(to % n));
  return back ? c == a - 1 : c == a + 1;
}

namespace {

/// S -> T S + B of the heads of a delta rule; T [heads, d_k, d_k], then B [heads, d_k, d_v], in floats.
struct Maps {
  std::int64_t heads, d_k, d_v;
  [[nodiscard]] std::int64_t transition() const { return heads * d_k * d_k; }
  [[nodiscard]] std::int64_t state() const { return heads * d_k * d_v; }
  [[nodiscard]] std::int64_t size() const { return transition() + state(); }

  /// out [heads, d_k, columns] = T in (+ plus).
  void apply(const float* t, const float* in, std::int64_t columns, const float* plus, float* out) const {
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t a = 0; a < d_k; ++a) {
        float* const row = out + (h * d_k + a) * columns;
        for (std::int64_t v = 0; v < columns; ++v) row[v] = plus ? plus[(h * d_k + a) * columns + v] : 0;
        for (std::int64_t c = 0; c < d_k; ++c) {
          const float each = t[(h * d_k + a) * d_k + c];
          const float* const from = in + (h * d_k + c) * columns;
          for (std::int64_t v = 0; v < columns; ++v) row[v] += each * from[v];
        }
      }
  }
  /// `late` after `early`.
  [[nodiscard]] std::vector<float> composed(const float* late, const float* early) const {
    std::vector<float> out(index(size()));
    apply(late, early, d_k, nullptr, out.data());
    apply(late, early + transition(), d_v, late + transition(), out.data() + transition());
    return out;
  }
  [[nodiscard]] std::vector<float> identity() const {
    std::vector<float> out(index(size()), 0.0f);
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t a = 0; a < d_k; ++a) out[index((h * d_k + a) * d_k + a)] = 1;
    return out;
  }
  void transpose(float* t) const {
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t a = 0; a < d_k; ++a)
        for (std::int64_t c = 0; c < a; ++c) std::swap(t[(h * d_k + a) * d_k + c], t[(h * d_k + c) * d_k + a]);
  }
};

}  // namespace

/// What runs pass along, in the order of the sequence, backward from the last run on. `chain`: each waits for the state
/// (the gradient of the state) before it. `scan`: in round k a run sends what 2^k runs up to it do together, so that
/// after ceil(log2 runs) rounds each knows what all before it do. `from`: each run's map (summarise); `to`: the state
/// before each run, backward the gradient of the one after it.
void Walk::pass_state(const Instance& i, const TensorView& from, const TensorView& to, bool scan) {
  Communicator& group = ranks_->need(Group::context);
  const ContextRuns dealt = context_runs_of(problem_, plan_);
  const bool back = i.phase == Phase::backward;
  const std::int64_t runs = dealt.sequences * dealt.per_rank, all = dealt.ranks * dealt.per_rank,
                     transition = (from.shape.elements() - to.shape.elements()) / runs;
  const auto [heads, d_k] = state_heads(i, transition);
  const Maps maps{heads, d_k, to.shape.elements() / runs / (heads * d_k)};
  std::vector<float> own(index(from.shape.elements()));
  settle();
  backend_.read(from, own);
  if (back)
    for (std::int64_t r = 0; r < runs; ++r) maps.transpose(own.data() + r * maps.size());
  // Places count in the order in which states pass; `mine` are this rank's, earliest first.
  std::vector<std::pair<std::int64_t, std::int64_t>> mine;  // place, run of the rank
  for (std::int64_t j = 0; j < dealt.per_rank; ++j) {
    const std::int64_t g = dealt.run(group.rank(), j);
    mine.emplace_back(back ? all - 1 - g : g, j);
  }
  std::sort(mine.begin(), mine.end());
  const auto rank_at = [&](std::int64_t p) { return static_cast<int>(dealt.owner(back ? all - 1 - p : p)); };
  const auto map_of = [&](std::vector<float>& of, std::int64_t s, std::int64_t j) {
    return of.data() + (s * dealt.per_rank + j) * maps.size();
  };
  std::vector<float> entering(index(to.shape.elements()), 0.0f);
  const auto enter = [&](std::int64_t s, std::int64_t j, const float* states) {
    std::copy_n(states, maps.state(), entering.begin() + (s * dealt.per_rank + j) * maps.state());
  };
  const std::int64_t floats = dealt.sequences * (scan ? maps.size() : maps.state());
  const auto staged = [&](std::int64_t slot) {
    return TensorView{staging_.get() + 4 * slot * floats, DType::f32, {floats}};
  };
  if (!scan) {
    std::vector<float> passed(index(floats), 0.0f), next(passed);
    for (std::size_t m = 0; m < mine.size(); ++m) {
      const auto [p, j] = mine[m];
      if (p > 0 && rank_at(p - 1) != group.rank()) {
        after_compute(group, backend_);
        group.receive(staged(1).data, floats, DType::f32, rank_at(p - 1));
        before_compute(group, backend_);
        settle();
        backend_.read(staged(1), passed);
      }
      for (std::int64_t s = 0; s < dealt.sequences; ++s) {
        const float *const map = map_of(own, s, j), *const in = passed.data() + s * maps.state();
        enter(s, j, in);
        maps.apply(map, in, maps.d_v, map + maps.transition(), next.data() + s * maps.state());
      }
      passed.swap(next);
      if (p + 1 == all || rank_at(p + 1) == group.rank()) continue;
      backend_.write(staged(0), passed);
      after_compute(group, backend_);
      group.send(staged(0).data, floats, DType::f32, rank_at(p + 1));
      before_compute(group, backend_);
      settle();
    }
    return backend_.write(to, entering);
  }
  std::vector<std::vector<float>> before(index(runs), maps.identity());  // what all earlier runs do
  for (std::int64_t step = 1; step < all; step *= 2) {
    std::vector<Transfer> sends, receives;
    std::vector<std::vector<float>> arrived(mine.size());
    for (std::size_t m = 0; m < mine.size(); ++m) {
      const auto [p, j] = mine[m];
      std::vector<float> message;
      for (std::int64_t s = 0; s < dealt.sequences; ++s)
        message.insert(message.end(), map_of(own, s, j), map_of(own, s, j) + maps.size());
      if (p + step < all && rank_at(p + step) == group.rank())
        for (std::size_t k = 0; k < mine.size(); ++k)
          if (mine[k].first == p + step) arrived[k] = message;
      const auto slot = static_cast<std::int64_t>(2 * m);
      if (p + step < all && rank_at(p + step) != group.rank()) {
        backend_.write(staged(slot), message);
        sends.push_back({staged(slot).data, floats, DType::f32, rank_at(p + step)});
      }
      if (p >= step && rank_at(p - step) != group.rank())
        receives.push_back({staged(slot + 1).data, floats, DType::f32, rank_at(p - step)});
    }
    if (!sends.empty() || !receives.empty()) {
      after_compute(group, backend_);
      group.send_receive(sends, receives);
      before_compute(group, backend_);
      settle();
    }
    for (std::size_t m = 0; m < mine.size(); ++m) {
      const auto [p, j] = mine[m];
      if (p < step) continue;
      if (arrived[m].empty()) {
        arrived[m].resize(index(floats));
        backend_.read(staged(static_cast<std::int64_t>(2 * m + 1)), arrived[m]);
      }
      for (std::int64_t s = 0; s < dealt.sequences; ++s) {
        const float* const early = arrived[m].data() + s * maps.size();
        std::vector<float>& earlier = before[index(s * dealt.per_rank + j)];
        earlier = maps.composed(earlier.data(), early);
        const std::vector<float> together = maps.composed(map_of(own, s, j), early);
        std::copy(together.begin(), together.end(), map_of(own, s, j));
      }
    }
  }
  for (const auto& [p, j] : mine)
    for (std::int64_t s = 0; s < dealt.sequences; ++s)
      enter(s, j, before[index(s * dealt.per_rank + j)].data() + maps.transition());
  backend_.write(to, entering);
}

/// Heads and key width of a block's delta rule whose maps have so many floats.
std::pair<std::int64_t, std::int64_t> Walk::state_heads(const Instance& i, std::int64_t transition) const {
  for (const BlockNode& n : block_of(i.slot).forward) {
    const OpCall* call = std::get_if<OpCall>(&n.call);
    if (!call) continue;
    if (const auto* kda = std::get_if<op::Kda>(&call->op);
        kda && kda->heads * kda->head_dim * kda->head_dim == transition)
      return {kda->heads, kda->head_dim};
    if (const auto* gdn = std::get_if<op::GatedDeltaNet>(&call->op);
        gdn && gdn->v_heads * gdn->d_k * gdn->d_k == transition)
      return {gdn->v_heads, gdn->d_k};
  }
  throw std::logic_error("a state of no delta rule in " + block_of(i.slot).name);
}

}  // namespace moeplan
