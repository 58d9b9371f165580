#include "sim/program/architectures/compose_parts.hpp"

#include <algorithm>
#include <array>

namespace moeplan::compose {

DType stored(const ModelSpec& m, WeightClass cls) {
  switch (cls) {
    case WeightClass::attention: return m.stored.attention;
    case WeightClass::dense: return m.stored.dense;
    case WeightClass::shared: return m.stored.shared;
    case WeightClass::experts: return m.stored.experts;
    default: return m.stored.base;
  }
}

double lora_scale(const Builder& b, WeightClass cls) {
  const Tuning& t = b.context().workload.tuning(cls);
  return t.training == Training::lora && t.rank > 0 && t.alpha > 0 ? t.alpha / static_cast<double>(t.rank) : 1.0;
}

std::vector<DealtRows> evenly(int ranks, std::initializer_list<std::int64_t> whole) {
  std::vector<DealtRows> out;
  for (const std::int64_t all : whole) out.push_back({all, (all + ranks - 1) / ranks});
  return out;
}

std::int64_t columns(const Builder& b, ValueId x) {
  const Shape& s = b.value(x).shape;
  return s[s.rank - 1];
}

std::int64_t rows(const Builder& b, ValueId x) { return b.value(x).shape.elements() / columns(b, x); }

ValueId project(Builder& b, const ModelSpec& m, ValueId x, const std::string& name, std::int64_t out, WeightClass cls, WeightSplit split, bool bias, std::optional<DType> type,
                std::optional<std::int64_t> here, const std::vector<DealtRows>& dealt) {
  const bool summed = split == WeightSplit::row && b.context().tp > 1;   // the bias is added once
  const std::int64_t in = columns(b, x) * (split == WeightSplit::row ? b.context().tp : 1);
  const WeightId w = b.weight(cls, name + ".weight", {out, in}, split, type.value_or(stored(m, cls)));
  const WeightId c = bias ? b.weight(cls, name + ".bias", {out}, split == WeightSplit::column ? split : summed ? WeightSplit::first : WeightSplit::none, m.stored.base) : -1;
  for (const WeightId each : {w, c})
    if (each >= 0 && !dealt.empty()) b.deal(each, dealt);
  if (here) b.hold_rows(w, *here);
  if (here && c >= 0) b.hold_rows(c, *here);
  return b.linear(x, w, here ? *here : split == WeightSplit::column ? local(b, out) : out, cls, name, c);
}

ValueId norm(Builder& b, const ModelSpec& m, ValueId x, const std::string& name) {
  const std::int64_t h = columns(b, x);
  const Training training = b.training(WeightClass::norm);
  const WeightId w = b.weight(WeightClass::norm, name + ".weight", {h}, WeightSplit::none, m.stored.base);
  if (m.norm == NormKind::rms) return b.call(op::RmsNorm{.tokens = rows(b, x), .hidden = h, .training = training, .unit_offset = m.unit_offset_norm, .epsilon = m.norm_epsilon}, {x}, {w}).front();
  const op::LayerNorm layer_norm{.tokens = rows(b, x), .hidden = h, .bias = m.norm == NormKind::layer_norm_bias, .training = training, .epsilon = m.norm_epsilon};
  if (!layer_norm.bias) return b.call(layer_norm, {x}, {w}).front();
  return b.call(layer_norm, {x}, {w, b.weight(WeightClass::norm, name + ".bias", {h}, WeightSplit::none, m.stored.base)}).front();
}

WeightId small(Builder& b, const std::string& name, Shape shape, WeightSplit split, DType stored) { return b.weight(WeightClass::other, name, shape, split, stored); }

ValueId add(Builder& b, ValueId x, ValueId y) { return b.call(op::Add{.tokens = rows(b, x), .hidden = columns(b, x)}, {x, y}).front(); }

ValueId rms(Builder& b, const ModelSpec& m, ValueId x, const std::string& name) { return head_norm(b, m, x, name, 1, columns(b, x)); }

ValueId head_norm(Builder& b, const ModelSpec& m, ValueId x, const std::string& name, std::int64_t heads, std::int64_t dim, bool weight) {
  const std::int64_t t = b.value(x).shape.elements() / (heads * dim);
  const op::RmsNorm norm{.tokens = t * heads, .hidden = dim, .has_weight = weight, .training = b.training(WeightClass::norm), .unit_offset = weight && m.unit_offset_norm, .epsilon = m.norm_epsilon};
  const ValueId y = weight ? b.call(norm, {x}, {b.weight(WeightClass::norm, name + ".weight", {dim}, WeightSplit::none, m.stored.base)}).front() : b.call(norm, {x}).front();
  b.reshape(y, {t, heads * dim});
  return y;
}

ValueId rotate(Builder& b, const Rope& rope, ValueId x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim, bool trailing, bool inverse) {
  if (!rope.enabled || rotary_dim < 2) return x;
  op::Rope call{.tokens = b.value(x).shape.elements() / (heads * head_dim), .heads = heads, .head_dim = head_dim, .rotary_dim = rotary_dim / 2 * 2,
                .sequence_length = b.context().sequence_length, .trailing = trailing, .interleaved = rope.interleaved, .inverse = inverse, .theta = rope.theta};
  const bool in_turns = rope.scaling == "llama3";
  if (rope.scaling == "linear") call.yarn_factor = std::max(1.0, rope.factor);
  if (rope.scaling == "yarn" || in_turns) {
    call.yarn_factor = std::max(1.0, rope.factor), call.yarn_original = static_cast<double>(rope.original_positions), call.ramp_in_turns = in_turns;
    call.yarn_beta_fast = rope.beta_fast, call.yarn_beta_slow = rope.beta_slow, call.magnitude = rope.magnitude, call.yarn_truncate = rope.truncated;
  }
  if (rope.scaling == "longrope") {
    const bool above = b.context().sequence_length > rope.original_positions;
    call.divisors = above ? rope.long_divisors : rope.short_divisors, call.magnitude = above ? rope.long_magnitude : rope.magnitude;
  }
  return b.call(call, {x}).front();
}

}  // namespace moeplan::compose
