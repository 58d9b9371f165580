/// Operators that continue over context ranks, by way of calls on longer runs. The rows before a run are put in front
/// of it. A recurrent state enters through the operator's own door: d_k tokens in front, of unit keys, with the rows of
/// the state as values, full step and no decay, write exactly that state; d_k tokens behind, whose queries are unit
/// vectors, read it. So states and their gradients cross ranks with the kernels that there are; the price is 2 d_k
/// tokens a run.

#include <cmath>

#include "core/error.hpp"
#include "executor/backend/convert.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {
namespace {

bool is_input(Role role) { return role == Role::input || role == Role::index; }

/// Widths of a delta rule's state, and its calls on other tokens.
struct DeltaRule {
  std::int64_t key_heads, heads, d_k, d_v;
};
DeltaRule rule_of(const Op& op) {
  if (const auto* kda = std::get_if<op::Kda>(&op)) return {kda->heads, kda->heads, kda->head_dim, kda->head_dim};
  const auto& gdn = std::get<op::GatedDeltaNet>(op);
  return {gdn.k_heads, gdn.v_heads, gdn.d_k, gdn.d_v};
}
Op resized(Op op, std::int64_t sequences, std::int64_t length) {
  std::visit(
      [&]<class O>(O& each) {
        if constexpr (std::is_same_v<O, op::Kda> || std::is_same_v<O, op::GatedDeltaNet> ||
                      std::is_same_v<O, op::ShortConv>)
          each.tokens = sequences * length, each.sequence_length = length;
      },
      op);
  return op;
}

constexpr float kNoDecay = -1e4f;  ///< a raw gate whose softplus, or sigmoid, is zero

}  // namespace

/// Memory for a call's longer operands: taken anew by each call in the same order, kept between them.
TensorView Walk::take(DType type, std::int64_t rows, std::int64_t width) {
  const std::int64_t bytes = plain_bytes(type) * rows * width;
  if (taken_ == longer_.size()) longer_.emplace_back();
  auto& [memory, size] = longer_[taken_++];
  if (size < bytes) memory = backend_.allocate({bytes}, "runs with what comes before them"), size = bytes;
  const TensorView out{memory.get(), type, {rows, width}};
  backend_.clear(out);
  return out;
}

/// Each of `runs` runs of `from` with `before` zero rows in front and `behind` after it.
TensorView Walk::longer(const TensorView& from, std::int64_t runs, std::int64_t before, std::int64_t behind) {
  const std::int64_t width = width_of(from), length = from.shape.elements() / width / runs,
                     whole = before + length + behind;
  const TensorView out = take(from.dtype, runs * whole, width);
  for (std::int64_t r = 0; r < runs; ++r)
    backend_.copy(part_of(from, r * length, length, 0, width), part_of(out, r * whole + before, length, 0, width));
  return out;
}

void Walk::shorter(const TensorView& from, const TensorView& to, std::int64_t runs, std::int64_t before,
                   std::int64_t behind) {
  const std::int64_t width = width_of(to), length = to.shape.elements() / width / runs,
                     whole = before + length + behind;
  for (std::int64_t r = 0; r < runs; ++r)
    backend_.copy(part_of(from, r * whole + before, length, 0, width), part_of(to, r * length, length, 0, width));
}

/// The rows in front of each run, or behind it, to or from `rows` of them one after the other.
void Walk::edges(const TensorView& of, const TensorView& rows, std::int64_t runs, std::int64_t whole, std::int64_t at,
                 bool into) {
  const std::int64_t width = width_of(of), count = rows.shape.elements() / width / runs;
  TensorView flat = rows;
  flat.shape = {runs * count, width};
  for (std::int64_t r = 0; r < runs; ++r) {
    const TensorView inside = part_of(of, r * whole + at, count, 0, width),
                     outside = part_of(flat, r * count, count, 0, width);
    into ? backend_.copy(outside, inside) : backend_.copy(inside, outside);
  }
}

/// What a call reads beyond its operator's operands.
std::size_t Walk::reads_beyond(const BlockNode& n) {
  std::size_t own = 0;
  const OpCall& call = std::get<OpCall>(n.call);
  const Operands contract = operands(call.op);
  for (std::size_t o = 0; o < contract.size(); ++o) {
    const bool input = is_input(contract[o].role);
    if (call.pass == Pass::forward)
      own += input;
    else
      own += (n.operands[o] >= 0) +
             (contract[o].role != Role::weight && !input && o < n.gradients.size() && n.gradients[o] >= 0);
  }
  return n.reads.size() - own;
}

/// A convolution with the rows before its runs, or a delta rule with the state before them and, backward, the gradient
/// of the state behind them.
void Walk::continued_call(const Instance& i, const BlockNode& n, const PassPlacement& at, OpCall call,
                          std::vector<TensorView> views, std::vector<TensorView> gradients, CallContext context,
                          MicroBatchState& state) {
  const Block& b = block_of(i.slot);
  const ContextRuns dealt = context_runs_of(problem_, plan_);
  const std::int64_t runs = dealt.sequences * dealt.per_rank, length = tokens_here() / runs;
  const bool backward = call.pass == Pass::backward, convolves = std::holds_alternative<op::ShortConv>(call.op);
  const Operands contract = operands(call.op);
  taken_ = 0;
  const auto view = [&](ValueId v) { return value_view(i.slot, at, v, b.values[index(v)].shape, state); };
  const auto extra = [&](std::size_t from_end) { return view(n.reads[n.reads.size() - from_end]); };
  if (const auto* attention = std::get_if<op::Attention>(&call.op)) {
    // A window: each run sees the keys before it, the first of a sequence none.
    const std::size_t parts = attention->shared_key > 0 ? 3 : 2;
    for (std::int64_t r = 0; r < runs; ++r) {
      taken_ = 0;
      const bool first = dealt.run(ranks_->place().index(Group::context), r % dealt.per_rank) == 0;
      const std::int64_t rows = first ? 0 : attention->window - 1;
      op::Attention one = *attention;
      one.tokens = length, one.kv_tokens = first ? 0 : rows + length, one.sequence_length = rows + length;
      std::vector<TensorView> here = views, d = gradients;
      const auto before_of = [&](const TensorView& t) {
        return part_of(t, r * (attention->window - 1), attention->window - 1, 0, width_of(t));
      };
      for (std::size_t o = 0; o < contract.size(); ++o) {
        if (contract[o].role == Role::weight) continue;
        const bool key = o >= 1 && o <= parts;
        for (auto* list : {&here, &d}) {
          TensorView& t = (*list)[o];
          if (!t.present()) continue;
          const TensorView own = part_of(t, r * length, length, 0, width_of(t));
          t = key ? take(t.dtype, rows + length, width_of(t)) : own;
          if (!key || list == &d) continue;
          if (rows > 0) backend_.copy(before_of(extra(parts + 1 - o)), part_of(t, 0, rows, 0, width_of(t)));
          backend_.copy(own, part_of(t, rows, length, 0, width_of(t)));
        }
      }
      context.workspace = {};
      backend_.call({one, call.pass, call.wants}, here, d, context);
      std::size_t written = n.writes.size();
      for (std::size_t o = parts; o >= 1 && backward; --o) {
        if (!gradients[o].present()) continue;
        const TensorView edge = before_of(view(n.writes[--written]));
        backend_.copy(part_of(d[o], rows, length, 0, width_of(d[o])),
                      part_of(gradients[o], r * length, length, 0, width_of(gradients[o])));
        if (rows > 0)
          backend_.copy(part_of(d[o], 0, rows, 0, width_of(d[o])), edge);
        else
          backend_.clear(edge);
      }
    }
    return;
  }
  std::int64_t before = 0, behind = 0;
  const std::vector<TensorView> short_views = views, short_gradients = gradients;
  if (convolves) {
    before = std::get<op::ShortConv>(call.op).taps - 1;
  } else {
    before = rule_of(call.op).d_k;
    behind = backward ? before : 0;
  }
  const std::int64_t whole = before + length + behind;
  for (std::size_t o = 0; o < contract.size(); ++o) {
    if (contract[o].role == Role::weight) continue;
    const bool result = !is_input(contract[o].role);
    const auto rows_of = [&](const TensorView& t) { return take(t.dtype, runs * whole, width_of(t)); };
    if (views[o].present())
      views[o] = result && !backward ? rows_of(short_views[o]) : longer(short_views[o], runs, before, behind);
    if (gradients[o].present())
      gradients[o] = result ? longer(short_gradients[o], runs, before, behind) : rows_of(short_gradients[o]);
  }
  if (convolves) {
    edges(views[0], extra(1), runs, whole, 0, true);
  } else {
    const TensorView entering = extra(backward ? 2 : 1);
    set_state_tokens(call.op, views, runs, whole, before, behind);
    put_state(call.op, views[2], entering, runs, whole, 0, 1);
    if (backward)  // what the queries behind read is scaled by d_k^-1/2
      put_state(call.op, gradients.back(), extra(1), runs, whole, before + length,
                std::sqrt(static_cast<float>(rule_of(call.op).d_k)));
  }
  call.op = resized(call.op, runs, whole);
  context.workspace = {};
  backend_.call(call, views, gradients, context);
  for (std::size_t o = 0; o < contract.size(); ++o) {
    if (contract[o].role == Role::weight) continue;
    const bool result = !is_input(contract[o].role);
    if (!backward && result && short_views[o].present()) shorter(views[o], short_views[o], runs, before, behind);
    if (backward && !result && short_gradients[o].present())
      shorter(gradients[o], short_gradients[o], runs, before, behind);
  }
  if (!convolves || !backward || !gradients[0].present()) return;
  const ValueId back = n.writes.back();
  edges(gradients[0], value_view(i.slot, at, back, b.values[index(back)].shape, state), runs, whole, 0, false);
}

/// The tokens in front of each run and behind it: unit keys, unit queries, no decay; the values come apart.
void Walk::set_state_tokens(const Op& op, std::span<const TensorView> views, std::int64_t runs, std::int64_t whole,
                            std::int64_t before, std::int64_t behind) {
  const DeltaRule rule = rule_of(op);
  const auto units = [&](const TensorView& t, std::int64_t at, std::int64_t rows) {
    std::vector<float> v(index(rows * rule.key_heads * rule.d_k), 0.0f);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t h = 0; h < rule.key_heads; ++h) v[index((r * rule.key_heads + h) * rule.d_k + r)] = 1;
    fill_edges(t, runs, whole, at, v);
  };
  const auto same = [&](const TensorView& t, std::int64_t at, std::int64_t rows, float value) {
    fill_edges(t, runs, whole, at, std::vector<float>(index(rows * width_of(t)), value));
  };
  units(views[1], 0, before);
  same(views[3], 0, before, kNoDecay);
  same(views[4], 0, before, 1);
  if (behind == 0) return;
  units(views[0], whole - behind, behind);
  same(views[3], whole - behind, behind, kNoDecay);
}

void Walk::fill_edges(const TensorView& t, std::int64_t runs, std::int64_t whole, std::int64_t at,
                      const std::vector<float>& values) {
  const std::int64_t width = width_of(t), rows = static_cast<std::int64_t>(values.size()) / width;
  for (std::int64_t r = 0; r < runs; ++r) backend_.write(part_of(t, r * whole + at, rows, 0, width), values);
}

/// States [runs, heads, d_k, d_v] as the values of the d_k tokens at `at` of each run.
void Walk::put_state(const Op& op, const TensorView& to, const TensorView& states, std::int64_t runs,
                     std::int64_t whole, std::int64_t at, float scale) {
  const DeltaRule rule = rule_of(op);
  const std::int64_t size = rule.heads * rule.d_k * rule.d_v;
  std::vector<float> all(index(runs * size)), tokens(index(size));
  settle();
  backend_.read(states, all);
  for (std::int64_t r = 0; r < runs; ++r) {
    for (std::int64_t h = 0; h < rule.heads; ++h)
      for (std::int64_t k = 0; k < rule.d_k; ++k)
        for (std::int64_t v = 0; v < rule.d_v; ++v)
          tokens[index((k * rule.heads + h) * rule.d_v + v)] =
              scale * all[index(r * size + (h * rule.d_k + k) * rule.d_v + v)];
    backend_.write(part_of(to, r * whole + at, rule.d_k, 0, rule.heads * rule.d_v), tokens);
  }
}

/// The other way: what d_k tokens of each run hold, as states, into `columns` of the rows of `out`.
void Walk::get_state(const Op& op, const TensorView& from, std::int64_t first, std::int64_t runs, std::int64_t whole,
                     std::int64_t at, std::int64_t d_v, float scale, std::vector<float>& out, std::int64_t stride,
                     std::int64_t column) {
  const DeltaRule rule = rule_of(op);
  std::vector<float> tokens(index(rule.heads * rule.d_k * rule.d_v));
  settle();
  for (std::int64_t r = 0; r < runs; ++r) {
    backend_.read(part_of(from, (first + r) * whole + at, rule.d_k, 0, rule.heads * rule.d_v), tokens);
    for (std::int64_t h = 0; h < rule.heads; ++h)
      for (std::int64_t k = 0; k < rule.d_k; ++k)
        for (std::int64_t v = 0; v < d_v; ++v)
          out[index(r * stride + column + (h * rule.d_k + k) * d_v + v)] =
              scale * tokens[index((k * rule.heads + h) * rule.d_v + v)];
  }
}

/// Each run's map from the state before it to the one after it, S -> T S + B: T from unit states and no values, B from
/// no state. Backward the same T, and as B the gradient of the state before the run that the run's own outputs give.
void Walk::summarise(const Instance& i, const BlockNode& n, const PassPlacement& at, MicroBatchState& state) {
  const Block& b = block_of(i.slot);
  const ContextRuns dealt = context_runs_of(problem_, plan_);
  const std::int64_t runs = dealt.sequences * dealt.per_rank, length = tokens_here() / runs;
  const OpCall& lowered = std::get<OpCall>(n.call);
  const Operands contract = operands(lowered.op);
  const DeltaRule rule = rule_of(lowered.op);
  if (rule.d_v < rule.d_k)
    throw InputError(std::string(kind(lowered.op)), "a state of fewer value than key columns is passed nowhere yet",
                     "cp = 1");
  const std::int64_t pad = rule.d_k, whole = 2 * pad + length, transition = rule.heads * rule.d_k * rule.d_k,
                     size = rule.heads * rule.d_k * rule.d_v;
  const bool backward = i.phase == Phase::backward;
  const float read_scale = std::sqrt(static_cast<float>(rule.d_k));
  taken_ = 0;
  const auto read = [&](std::size_t r) {
    const ValueId v = n.reads[r];
    return value_view(i.slot, at, v, b.values[index(v)].shape, state);
  };
  std::vector<TensorView> views(contract.size()), gradients(contract.size());
  std::size_t next_read = 0, next_weight = 0, out = 0;
  for (std::size_t o = 0; o < contract.size(); ++o) {
    if (contract[o].role == Role::weight)
      views[o] = weight_view(i.slot, n.weights[next_weight++]), views[o].shape = contract[o].shape;
    else if (is_input(contract[o].role))
      views[o] = longer(read(next_read++), runs, pad, pad);
    else
      out = o;
  }
  set_state_tokens(lowered.op, views, runs, whole, pad, pad);
  const DType type = views[2].dtype;
  const std::int64_t columns = rule.heads * rule.d_v;
  std::vector<float> maps(index(runs * (transition + size)));
  const OpCall call{resized(lowered.op, runs, whole), Pass::forward, {}};
  views[out] = take(type, runs * whole, columns);
  if (!backward) {
    backend_.call(call, views, gradients, {});
    get_state(lowered.op, views[out], 0, runs, whole, pad + length, rule.d_v, read_scale, maps, transition + size,
              transition);
  } else {
    OpCall back = call;
    back.pass = Pass::backward;
    for (std::size_t o = 0; o < contract.size(); ++o)
      if (is_input(contract[o].role)) gradients[o] = take(views[o].dtype, runs * whole, width_of(views[o]));
    gradients[out] = longer(read(next_read), runs, pad, pad);
    back.wants = {true, false};
    const TensorView y = std::exchange(views[out], {});
    backend_.call(back, views, gradients, {});
    views[out] = y;
    get_state(lowered.op, gradients[2], 0, runs, whole, 0, rule.d_v, 1, maps, transition + size, transition);
    std::fill(gradients.begin(), gradients.end(), TensorView{});
  }
  backend_.clear(views[2]);
  std::vector<float> units(index(size), 0.0f);
  for (std::int64_t k = 0; k < rule.d_k; ++k)
    for (std::int64_t h = 0; h < rule.heads; ++h) units[index((k * rule.heads + h) * rule.d_v + k)] = 1;
  fill_edges(views[2], runs, whole, 0, units);
  backend_.call(call, views, gradients, {});
  get_state(lowered.op, views[out], 0, runs, whole, pad + length, rule.d_k, read_scale, maps, transition + size, 0);
  const ValueId written = n.writes.front();
  backend_.write(value_view(i.slot, at, written, {runs, transition + size}, state), maps);
}

}  // namespace moeplan
