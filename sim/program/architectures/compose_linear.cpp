/// Linear attention and state spaces: KDA, Gated DeltaNet, Mamba-2, Mamba-1, lightning attention.

#include "sim/program/architectures/compose_parts.hpp"

namespace moeplan::compose {
namespace {

constexpr WeightClass attention = WeightClass::attention;

ValueId convolve(Builder& b, ValueId x, const std::string& name, std::int64_t channels, std::int64_t taps, bool bias, DType type, const std::vector<DealtRows>& dealt = {}) {
  const std::int64_t here = columns(b, x);
  const op::ShortConv call{.tokens = rows(b, x), .sequence_length = b.run(), .channels = here, .taps = taps, .bias = bias, .training = b.training(WeightClass::other)};
  const WeightId w = small(b, name + ".weight", {channels, 1, taps}, WeightSplit::column, type);
  b.hold_rows(w, here);
  std::vector<WeightId> weights{w};
  if (bias) weights.push_back(small(b, name + ".bias", {channels}, WeightSplit::column, type));
  if (bias) b.hold_rows(weights.back(), here);
  for (const WeightId each : weights)
    if (!dealt.empty()) b.deal(each, dealt);
  auto before = b.halo(std::array{x}, taps - 1);
  const ValueId y = b.call(call, std::array{x}, weights).front();
  b.reads_also(ContextWork::halo, std::move(before));
  return y;
}

ValueId gated_norm(Builder& b, const ModelSpec& m, ValueId y, ValueId gate, const std::string& name, std::int64_t rows, std::int64_t width, std::int64_t full_width, op::GatedRmsNorm call, DType type) {
  call.tokens = rows;
  call.hidden = width;
  call.training = b.training(WeightClass::norm);
  call.epsilon = m.norm_epsilon;
  const WeightId w = b.weight(WeightClass::norm, name + ".weight", {full_width}, full_width == width ? WeightSplit::none : WeightSplit::column, type);
  return b.call(call, {y, gate}, {w}).front();
}

}  // namespace

ValueId mix(Builder& b, const ModelSpec& m, const KdaAttention& a, ValueId x, Stream&) {
  const std::int64_t width = a.heads * a.head_dim, heads = local(b, a.heads), t = rows(b, x);
  ValueId in[3];
  const char* names[3] = {"q", "k", "v"};
  for (int i = 0; i < 3; ++i) {
    const ValueId y = project(b, m, x, std::string(names[i]) + "_proj", width, attention, WeightSplit::column);
    in[i] = convolve(b, y, std::string(names[i]) + "_conv1d", width, a.conv, false, DType::f32);
  }
  const ValueId decay = project(b, m, project(b, m, x, "f_a_proj", a.head_dim, attention), "f_b_proj", width, attention, WeightSplit::column);
  const ValueId raw_beta = project(b, m, x, "b_proj", a.heads, attention, WeightSplit::column);
  const ValueId beta = b.call(op::Activate{.tokens = t, .width = heads, .function = op::Function::sigmoid, .output = DType::f32}, {raw_beta}).front();
  const std::int64_t stored_heads = std::max(a.heads, a.stored_a_log);
  const WeightId a_log = b.weight(WeightClass::other, "A_log", {a.heads}, WeightSplit::column,
                                  std::vector<TensorSource>{{.name = "A_log", .shape = {stored_heads}, .count = 1, .dtype = DType::f32, .padding = stored_heads - a.heads}});
  const WeightId dt_bias = small(b, "dt_bias", {width}, WeightSplit::column);
  const op::Kda call{.tokens = t, .sequence_length = b.run(), .heads = heads, .head_dim = a.head_dim, .bounded = a.gate_lower_bound.has_value(),
                     .training = b.training(WeightClass::other), .lower_bound = a.gate_lower_bound.value_or(-5)};
  ValueId y = scan(b, a, call, {in[0], in[1], in[2], decay, beta}, {a_log, dt_bias});
  const ValueId gate = a.gate == OutputGate::projection
                           ? project(b, m, x, "g_proj", width, attention, WeightSplit::column)
                           : project(b, m, project(b, m, x, "g_a_proj", a.head_dim, attention), "g_b_proj", width, attention, WeightSplit::column);
  y = gated_norm(b, m, y, gate, "o_norm", t * heads, a.head_dim, a.head_dim, {.gate = op::GateFunction::sigmoid}, DType::f32);
  b.reshape(y, {t, heads * a.head_dim});
  return project(b, m, y, "o_proj", m.hidden, attention, WeightSplit::row);
}

ValueId mix(Builder& b, const ModelSpec& m, const GdnAttention& a, ValueId x, Stream&) {
  const std::int64_t kd = a.k_heads * a.k_dim, vd = a.v_heads * a.v_dim, share = a.v_heads / a.k_heads, t = rows(b, x);
  const std::int64_t nk = local(b, a.k_heads), nv = local(b, a.v_heads);
  ValueId qkv = -1, z = -1, raw_beta = -1, decay = -1;
  if (a.split_projections) {
    qkv = project(b, m, x, "in_proj_qkv", 2 * kd + vd, attention, WeightSplit::column, false, {}, {}, evenly(b.context().tp, {kd, kd, vd}));
    z = project(b, m, x, "in_proj_z", vd, attention, WeightSplit::column);
    raw_beta = project(b, m, x, "in_proj_b", a.v_heads, attention, WeightSplit::column);
    decay = project(b, m, x, "in_proj_a", a.v_heads, attention, WeightSplit::column);
  } else {  // rows come by key head: its q, k, and the v and z of the value heads that share it
    const ValueId all = project(b, m, x, "in_proj_qkvz", 2 * kd + 2 * vd, attention, WeightSplit::column);
    const auto parts = b.call(op::Split{.tokens = t, .groups = nk, .first = 2 * a.k_dim + share * a.v_dim, .second = share * a.v_dim}, {all});
    qkv = parts[0];
    z = parts[1];
    const ValueId ba = project(b, m, x, "in_proj_ba", 2 * a.v_heads, attention, WeightSplit::column);
    const auto gates = b.call(op::Split{.tokens = t, .groups = nk, .first = share, .second = share}, {ba});
    raw_beta = gates[0];
    decay = gates[1];
  }
  qkv = convolve(b, qkv, "conv1d", 2 * kd + vd, a.conv, false, m.stored.base, a.split_projections ? evenly(b.context().tp, {kd, kd, vd}) : std::vector<DealtRows>{});
  const auto parts = a.split_projections ? b.call(op::Split{.tokens = t, .first = nk * a.k_dim, .second = nk * a.k_dim, .third = nv * a.v_dim}, {qkv})
                                         : b.call(op::Split{.tokens = t, .groups = nk, .first = a.k_dim, .second = a.k_dim, .third = share * a.v_dim}, {qkv});
  const ValueId beta = b.call(op::Activate{.tokens = t, .width = nv, .function = op::Function::sigmoid, .output = DType::f32}, {raw_beta}).front();
  const WeightId dt_bias = small(b, "dt_bias", {a.v_heads}, WeightSplit::column, m.stored.base), a_log = small(b, "A_log", {a.v_heads}, WeightSplit::column);
  const op::GatedDeltaNet call{.tokens = t, .sequence_length = b.run(), .k_heads = nk, .v_heads = nv, .d_k = a.k_dim, .d_v = a.v_dim, .training = b.training(WeightClass::other)};
  ValueId y = scan(b, a, call, {parts[0], parts[1], parts[2], decay, beta}, {a_log, dt_bias});
  y = gated_norm(b, m, y, z, "norm", t * nv, a.v_dim, a.v_dim, {.gate = op::GateFunction::silu}, DType::f32);
  b.reshape(y, {t, nv * a.v_dim});
  return project(b, m, y, "out_proj", m.hidden, attention, WeightSplit::row);
}

ValueId mix(Builder& b, const ModelSpec& m, const Mamba2Mixer& a, ValueId x, Stream&) {
  const std::int64_t inner = a.heads * a.head_dim, bc = a.groups * a.state, conv = inner + 2 * bc, t = rows(b, x);
  const std::int64_t heads = local(b, a.heads), groups = local(b, a.groups), inner_local = heads * a.head_dim, bc_local = groups * a.state;
  const ValueId all = project(b, m, x, "in_proj", inner + conv + a.heads, attention, WeightSplit::column, false, {}, 2 * inner_local + 2 * bc_local + heads,
                              {{inner, inner_local}, {inner, inner_local}, {bc, bc_local}, {bc, bc_local}, {a.heads, heads}});
  const auto parts = b.call(op::Split{.tokens = t, .first = inner_local, .second = inner_local + 2 * bc_local, .third = heads}, {all});
  const ValueId xbc = convolve(b, parts[1], "conv1d", conv, a.conv, true, m.stored.base, {{inner, inner_local}, {bc, bc_local}, {bc, bc_local}});
  const auto in = b.call(op::Split{.tokens = t, .first = inner_local, .second = bc_local, .third = bc_local}, {xbc});
  const WeightId a_log = small(b, "A_log", {a.heads}, WeightSplit::column), dt_bias = small(b, "dt_bias", {a.heads}, WeightSplit::column), d = small(b, "D", {a.heads}, WeightSplit::column);
  const op::Mamba2 call{.tokens = t, .sequence_length = b.run(), .heads = heads, .head_dim = a.head_dim, .groups = groups, .state = a.state, .training = b.training(WeightClass::other)};
  ValueId y = scan(b, a, call, {in[0], in[1], in[2], parts[2]}, {a_log, dt_bias, d});
  y = gated_norm(b, m, y, parts[0], "norm", t, inner_local, inner, {.groups = groups, .gate = op::GateFunction::silu, .gate_first = true}, m.stored.base);
  return project(b, m, y, "out_proj", m.hidden, attention, WeightSplit::row);
}

ValueId mix(Builder& b, const ModelSpec& m, const Mamba1Mixer& a, ValueId x, Stream&) {
  const std::int64_t inner = local(b, a.inner), t = rows(b, x);
  const ValueId all = project(b, m, x, "in_proj", 2 * a.inner, attention, WeightSplit::column, false, {}, {}, evenly(b.context().tp, {a.inner, a.inner}));
  const auto parts = b.call(op::Split{.tokens = t, .first = inner, .second = inner}, {all});
  const ValueId u = convolve(b, parts[0], "conv1d", a.inner, a.conv, true, m.stored.base);
  const ValueId raw = b.sum_over_tensor(project(b, m, u, "x_proj", a.dt_rank + 2 * a.state, attention, WeightSplit::row));
  const auto small_parts = b.call(op::Split{.tokens = t, .first = a.dt_rank, .second = a.state, .third = a.state}, {raw});
  const ValueId dt_in = rms(b, m, small_parts[0], "dt_layernorm"), in_b = rms(b, m, small_parts[1], "b_layernorm"), in_c = rms(b, m, small_parts[2], "c_layernorm");
  const ValueId dt = project(b, m, dt_in, "dt_proj", a.inner, attention, WeightSplit::column, true);
  const WeightId a_log = small(b, "A_log", {a.inner, a.state}, WeightSplit::column, m.stored.base), d = small(b, "D", {a.inner}, WeightSplit::column, m.stored.base);
  ValueId y = scan(b, a, op::Mamba1{.tokens = t, .sequence_length = b.run(), .inner = inner, .state = a.state, .training = b.training(WeightClass::other)}, {u, dt, in_b, in_c}, {a_log, d});
  y = b.call(op::MulGate{.tokens = t, .width = inner, .gate_width = inner, .function = op::GateFunction::silu}, {y, parts[1]}).front();
  return project(b, m, y, "out_proj", m.hidden, attention, WeightSplit::row);
}

ValueId mix(Builder& b, const ModelSpec& m, const LightningAttention& a, ValueId x, Stream&) {
  const std::int64_t width = a.heads * a.head_dim, heads = local(b, a.heads), width_local = heads * a.head_dim, t = rows(b, x);
  ValueId qkv = project(b, m, x, "qkv_proj", 3 * width, attention, WeightSplit::column);
  qkv = b.call(op::Activate{.tokens = t, .width = 3 * width_local, .function = op::Function::silu}, {qkv}).front();
  const auto parts = b.call(op::Split{.tokens = t, .groups = heads, .first = a.head_dim, .second = a.head_dim, .third = a.head_dim}, {qkv});
  ValueId y = scan(b, a, op::LightningAttention{.tokens = t, .sequence_length = b.run(), .heads = heads, .head_dim = a.head_dim, .total_heads = a.heads}, {parts[0], parts[1], parts[2]}, {});
  y = b.sum_statistics(y, sizeof(float), true);   // the norm runs over all heads
  y = b.call(op::RmsNorm{.tokens = t, .hidden = width_local, .training = b.training(WeightClass::norm), .epsilon = m.norm_epsilon}, {y}, {b.weight(WeightClass::norm, "norm.weight", {width}, WeightSplit::column, m.stored.base)}).front();
  const ValueId gate = project(b, m, x, "output_gate", width, attention, WeightSplit::column);
  y = b.call(op::MulGate{.tokens = t, .width = width_local, .gate_width = width_local}, {y, gate}).front();
  return project(b, m, y, "out_proj", m.hidden, attention, WeightSplit::row);
}

}  // namespace moeplan::compose
