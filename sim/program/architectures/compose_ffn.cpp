/// Feed-forwards: dense, and experts with router, shared experts, latent projections and zero experts.

#include "sim/program/architectures/compose_parts.hpp"

namespace moeplan::compose {
namespace {

ValueId activate(Builder& b, Activation activation, const ActivationNumbers& n, bool gated, ValueId x, bool ragged, bool interleaved = false) {
  const std::int64_t width = columns(b, x);
  if (gated) {
    op::Glu call{.tokens = rows(b, x), .intermediate = width / 2, .activation = activation, .interleaved = interleaved, .ragged = ragged};
    call.beta = n.beta, call.linear_beta = n.linear_beta, call.alpha = n.alpha, call.limit = n.limit, call.up_offset = n.up_offset;
    return b.call(call, {x}).front();
  }
  return b.call(op::Activate{.tokens = rows(b, x), .width = width, .function = op::function_of(activation), .ragged = ragged}, {x}).front();
}

/// A feed-forward of one width; gate and up are one matrix here and two in the file (unless `fused`).
ValueId feed_forward(Builder& b, const ModelSpec& m, ValueId x, std::int64_t intermediate, bool gated, bool bias, Activation activation, const ActivationNumbers& numbers, WeightClass cls, bool fused) {
  const std::int64_t h = columns(b, x);
  const DType type = stored(m, cls);
  ValueId y = -1;
  if (gated) {
    std::vector<TensorSource> sources;
    if (fused) sources.push_back({.name = "gate_up_proj.weight", .shape = {2 * intermediate, h}, .dtype = type});
    else for (const char* name : {"gate_proj.weight", "up_proj.weight"}) sources.push_back({.name = name, .shape = {intermediate, h}, .dtype = type});
    const WeightId w = b.weight(cls, "gate_up_proj.weight", {2 * intermediate, h}, WeightSplit::column, std::move(sources));
    WeightId c = -1;
    if (bias) {
      std::vector<TensorSource> parts;
      for (const char* name : {"gate_proj.bias", "up_proj.bias"}) parts.push_back({.name = name, .shape = {intermediate}, .dtype = m.stored.base});
      c = b.weight(cls, "gate_up_proj.bias", {2 * intermediate}, WeightSplit::column, std::move(parts));
    }
    for (const WeightId each : {w, c})
      if (each >= 0) b.deal(each, evenly(b.context().tp, {intermediate, intermediate}));
    y = b.linear(x, w, local(b, 2 * intermediate), cls, "gate_up_proj", c);
  } else {
    y = project(b, m, x, "up_proj", intermediate, cls, WeightSplit::column, bias);
  }
  return project(b, m, activate(b, activation, numbers, gated, y, false), "down_proj", h, cls, WeightSplit::row, bias);
}

/// Where the file keeps gate, up and down of the routed experts.
std::vector<TensorSource> up_sources(const MoeFfn& f, std::int64_t width, DType type) {
  const std::int64_t e = f.experts, i = f.intermediate;
  const auto one = [&](const char* name, std::vector<std::int64_t> shape, std::int64_t count) { return TensorSource{.name = name, .shape = std::move(shape), .count = count, .dtype = type}; };
  switch (f.layout) {
    case ExpertLayout::fused_gate_up: return {one("experts.gate_up_proj", {e, f.gated ? 2 * i : i, width}, 1)};
    case ExpertLayout::fused_transposed: return {one("experts.gate_up_proj", {e, width, f.gated ? 2 * i : i}, 1)};
    case ExpertLayout::separate_3d:
      if (f.gated) return {one("experts.gate_proj", {e, i, width}, 1), one("experts.up_proj", {e, i, width}, 1)};
      return {one("experts.up_proj", {e, i, width}, 1)};
    case ExpertLayout::flat_2d:
      if (f.gated) return {one("experts.gate_proj", {e * i, width}, 1), one("experts.up_proj", {e * i, width}, 1)};
      return {one("experts.up_proj", {e * i, width}, 1)};
    case ExpertLayout::per_expert: break;
  }
  if (f.gated) return {one("experts.*.gate_proj.weight", {i, width}, e), one("experts.*.up_proj.weight", {i, width}, e)};
  return {one("experts.*.up_proj.weight", {i, width}, e)};
}

TensorSource down_source(const MoeFfn& f, std::int64_t width, DType type) {
  const std::int64_t e = f.experts, i = f.intermediate;
  switch (f.layout) {
    case ExpertLayout::fused_gate_up: case ExpertLayout::separate_3d: return {.name = "experts.down_proj", .shape = {e, width, i}, .dtype = type};
    case ExpertLayout::fused_transposed: return {.name = "experts.down_proj", .shape = {e, i, width}, .dtype = type};
    case ExpertLayout::flat_2d: return {.name = "experts.down_proj", .shape = {e * i, width}, .dtype = type};
    case ExpertLayout::per_expert: break;
  }
  return {.name = "experts.*.down_proj.weight", .shape = {width, i}, .count = e, .dtype = type};
}

struct Routing {
  ValueId weights, indices, zero = -1;
};

Routing route(Builder& b, const ModelSpec& m, const MoeFfn& f, ValueId x, Stream& stream) {
  const std::int64_t t = rows(b, x), all = f.experts + f.zero_experts;
  std::vector<ValueId> values{x};
  std::vector<WeightId> weights{b.weight(WeightClass::router, "gate.weight", {all, m.hidden}, WeightSplit::none, m.stored.base)};
  if (f.router_bias) weights.push_back(b.weight(WeightClass::router, "gate.bias", {all}, WeightSplit::none, m.stored.base));
  if (f.score_bias) {
    const std::vector<std::int64_t> shape = f.score_bias_rank == 2 ? std::vector<std::int64_t>{1, all} : std::vector<std::int64_t>{all};
    weights.push_back(b.weight(WeightClass::router, "gate.e_score_correction_bias", {all}, WeightSplit::none,
                               std::vector<TensorSource>{{.name = "gate.e_score_correction_bias", .shape = shape, .dtype = DType::f32}}));
    b.buffer(weights.back());
  }
  if (f.hash_routed) {
    weights.push_back(b.weight(WeightClass::router, "gate.tid2eid", {m.vocabulary, f.top_k}, WeightSplit::none, DType::i64));
    b.buffer(weights.back());
    if (stream.token_ids < 0) stream.token_ids = b.input("token_ids", {t}, DType::i32, false);
    values.push_back(stream.token_ids);
  }
  const op::Router call{.tokens = t, .hidden = m.hidden, .experts = f.experts, .top_k = f.top_k, .score = f.score, .groups = f.groups, .top_groups = f.top_groups,
                        .normalise = f.normalise, .bias = f.router_bias, .score_bias = f.score_bias, .zero_experts = f.zero_experts,
                        .hash_vocabulary = f.hash_routed ? m.vocabulary : 0, .training = b.training(WeightClass::router), .route_scale = f.route_scale, .jitter = f.jitter};
  const auto out = b.call(call, values, weights);
  if (f.zero_experts > 0) return {out[0], out[2], out[1]};
  return {out[0], out[1]};
}

}  // namespace

ValueId mix(Builder& b, const ModelSpec& m, const DenseFfn& f, ValueId x, Stream&) {
  return feed_forward(b, m, x, f.intermediate, f.gated, f.bias, f.activation, f.numbers, WeightClass::dense, false);
}

/// `x` is the tensor rank's share of the tokens: routing and exchange work on it, the shared expert gathers it itself.
ValueId mix(Builder& b, const ModelSpec& m, const MoeFfn& f, ValueId x, Stream& stream) {
  const BlockContext& c = b.context();
  const std::int64_t t = rows(b, x), width = f.latent > 0 ? f.latent : m.hidden, e = f.experts, i = f.intermediate;
  const std::int64_t experts_local = (e + c.replicas + c.ep - 1) / c.ep, up = f.gated ? 2 * i : i;
  const DType type = stored(m, WeightClass::experts);
  const Routing routing = route(b, m, f, x, stream);
  ValueId to_experts = x;
  if (f.latent > 0) to_experts = project(b, m, x, "routed_expert_down_proj", f.latent, WeightClass::latent);
  const auto permuted = b.call(op::Permute{.tokens = t, .top_k = f.top_k, .width = width, .experts = e + f.zero_experts}, {to_experts, routing.indices});
  ValueId y = b.dispatch(permuted[0], t, e);

  const WeightId w_up = b.weight(WeightClass::experts, "experts.gate_up_proj", {e, up, width}, WeightSplit::expert, up_sources(f, width, type));
  const WeightId b_up = f.bias ? b.weight(WeightClass::experts, "experts.gate_up_proj_bias", {e, up}, WeightSplit::expert, m.stored.base) : -1;
  for (const WeightId w : {w_up, b_up}) if (w >= 0 && f.gated && !f.interleaved) b.deal(w, evenly(c.etp, {i, i}));
  if (c.replicas > 0)
    for (const WeightId w : {w_up, b_up}) if (w >= 0) b.hold_rows(w, experts_local);
  y = b.grouped_linear(y, w_up, experts_local, (up + c.etp - 1) / c.etp, "experts.gate_up_proj", b_up);
  y = activate(b, f.activation, f.numbers, f.gated, y, true, f.interleaved);
  const WeightId w_down = b.weight(WeightClass::experts, "experts.down_proj", {e, width, i}, WeightSplit::expert_row, std::vector<TensorSource>{down_source(f, width, type)});
  WeightId b_down = f.bias ? b.weight(WeightClass::experts, "experts.down_proj_bias", {e, width}, WeightSplit::expert, m.stored.base) : -1;
  if (c.replicas > 0)
    for (const WeightId w : {w_down, b_down}) if (w >= 0) b.hold_rows(w, experts_local);
  if (c.etp > 1) b_down = -1;  // each expert-tensor rank holds a part of it and adds it after their sum
  y = b.grouped_linear(y, w_down, experts_local, width, "experts.down_proj", b_down);
  y = b.combine(y, t * f.top_k, t, e);
  y = b.call(op::Combine{.tokens = t, .top_k = f.top_k, .width = width}, {y, routing.weights, permuted[1]}).front();

  if (f.latent_norm) y = rms(b, m, y, "routed_expert_norm");
  if (f.latent > 0) y = project(b, m, y, "routed_expert_up_proj", m.hidden, WeightClass::latent);
  if (routing.zero >= 0) {  // identity experts return the token itself
    const ValueId self = b.call(op::MulGate{.tokens = t, .width = m.hidden, .gate_width = 1, .function = op::GateFunction::identity, .gate = DType::f32}, {x, routing.zero}).front();
    y = add(b, y, self);
  }
  if (f.shared_intermediate > 0) {
    const std::string outer = b.scope({});
    b.scope(outer + "shared_experts.");
    ValueId s = feed_forward(b, m, b.enter_tensor_region(x), f.shared_intermediate, f.gated, false, f.activation, f.numbers, WeightClass::shared, f.shared_fused);
    s = b.leave_tensor_region(s);
    b.scope(outer);
    if (f.shared_gate) {
      const ValueId gate = project(b, m, x, "shared_expert_gate", 1, WeightClass::router);
      s = b.call(op::MulGate{.tokens = t, .width = m.hidden, .gate_width = 1}, {s, gate}).front();
    }
    y = add(b, y, s);
  }
  return y;
}

}  // namespace moeplan::compose
