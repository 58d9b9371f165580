/// Softmax attention: GQA with its variants, MLA, and DSA (MLA over the keys that a lightning indexer selects).

#include <cmath>

#include "sim/program/architectures/compose_parts.hpp"

namespace moeplan::compose {
namespace {

constexpr WeightClass attention = WeightClass::attention;

struct Qkv {
  ValueId q, k, v, gate = -1;
};

/// Query, key and value projections of GQA, with the output gate's half of the query where it has one.
Qkv qkv(Builder& b, const ModelSpec& m, const GqaAttention& a, ValueId x) {
  const std::int64_t heads = local(b, a.heads), kv = local(b, a.kv_heads), t = rows(b, x);
  const std::int64_t q_width = a.heads * a.head_dim, k_width = a.kv_heads * a.head_dim, v_width = a.kv_heads * a.v_head_dim;
  if (a.fused_qkv) {
    const ValueId y = project(b, m, x, "qkv_proj", q_width + k_width + v_width, attention, WeightSplit::column, a.qkv_bias, {}, heads * a.head_dim + kv * (a.head_dim + a.v_head_dim),
                              {{q_width, heads * a.head_dim}, {k_width, kv * a.head_dim}, {v_width, kv * a.v_head_dim}});
    const auto parts = b.call(op::Split{.tokens = t, .first = heads * a.head_dim, .second = kv * a.head_dim, .third = kv * a.v_head_dim}, {y});
    return {parts[0], parts[1], parts[2]};
  }
  Qkv out{};
  if (a.q_latent > 0) {  // Step-3: queries through a shared latent
    ValueId latent = project(b, m, x, "q_proj", a.q_latent, attention);
    latent = rms(b, m, latent, "inter_norm");
    out.q = project(b, m, latent, "wq", q_width, attention, WeightSplit::column);
  } else if (a.gate == OutputGate::in_q_proj) {
    const ValueId y = project(b, m, x, "q_proj", 2 * q_width, attention, WeightSplit::column, a.qkv_bias);
    const auto parts = b.call(op::Split{.tokens = t, .groups = heads, .first = a.head_dim, .second = a.head_dim}, {y});
    out.q = parts[0];
    out.gate = parts[1];
  } else {
    out.q = project(b, m, x, "q_proj", q_width, attention, WeightSplit::column, a.qkv_bias);
  }
  out.k = project(b, m, x, "k_proj", k_width, attention, WeightSplit::column, a.qkv_bias, {}, kv * a.head_dim);
  out.v = a.k_is_v ? out.k : project(b, m, x, "v_proj", v_width, attention, WeightSplit::column, a.qkv_bias, {}, kv * a.v_head_dim);
  return out;
}

/// Indices of the key blocks that MiniMax-M3's index branch selects.
ValueId block_indices(Builder& b, const ModelSpec& m, const GqaAttention& a, ValueId x, std::int64_t& topk) {
  const std::int64_t t = rows(b, x), seq = b.context().sequence_length;
  ValueId q = project(b, m, x, "index_q_proj", a.index_heads * a.index_dim, WeightClass::other);
  ValueId k = project(b, m, x, "index_k_proj", a.index_dim, WeightClass::other);
  q = head_norm(b, m, q, "index_q_norm", a.index_heads, a.index_dim);
  k = head_norm(b, m, k, "index_k_norm", 1, a.index_dim);
  const op::Compress pool{.tokens = t, .sequence_length = b.run(), .width = a.index_dim, .ratio = a.index_block, .gated = false};
  const std::int64_t blocks = pool.rows() * b.context().cp;
  topk = a.index_topk / a.index_block;
  if (blocks == 0) return -1;  // shorter than one block: every key is visible anyway
  k = b.gather_context(b.call(pool, {k}).front());
  // The heads are not weighed; the contract reads weights, so the first columns of the queries stand in.
  const ValueId weights = b.call(op::Split{.tokens = t, .first = a.index_heads, .second = a.index_heads * a.index_dim - a.index_heads}, {q}).front();
  return b.call(op::Indexer{.tokens = t, .sequence_length = seq, .heads = a.index_heads, .dim = a.index_dim, .topk = topk, .key_ratio = a.index_block, .kv_tokens = blocks * a.index_block},
                {q, k, weights}).front();
}

/// The indices of DSA, from the query latent and the layer's input.
ValueId lightning_indices(Builder& b, const ModelSpec& m, const MlaAttention& a, ValueId x, ValueId q_latent, std::int64_t topk, std::int64_t pool) {
  const DsaIndexer& i = *a.indexer;
  const std::int64_t t = rows(b, x), seq = b.context().sequence_length, rotary = std::min(a.rope_dim, i.dim);
  ValueId q = project(b, m, q_latent, "indexer.wq_b", i.heads * i.dim, WeightClass::other, WeightSplit::none, false, m.stored.attention);
  ValueId k = project(b, m, x, "indexer.wk", i.dim, WeightClass::other, WeightSplit::none, false, m.stored.attention);
  const WeightId w = small(b, "indexer.k_norm.weight", {i.dim}, WeightSplit::none, m.stored.base), bias = small(b, "indexer.k_norm.bias", {i.dim}, WeightSplit::none, m.stored.base);
  k = b.call(op::LayerNorm{.tokens = t, .hidden = i.dim, .training = b.training(WeightClass::other), .epsilon = 1e-6}, {k}, {w, bias}).front();
  Rope halves = a.rope;   // DeepSeek's indexer turns halves where the attention beside it turns neighbours; GLM's turns neighbours too
  halves.interleaved = a.rope.interleaved && m.family == "glm";
  q = rotate(b, halves, q, i.heads, i.dim, rotary, false);
  k = rotate(b, halves, k, 1, i.dim, rotary, false);
  const ValueId weights = project(b, m, x, "indexer.weights_proj", i.heads, WeightClass::other);
  op::Indexer call{.tokens = t, .sequence_length = seq, .heads = i.heads, .dim = i.dim, .topk = topk, .key_ratio = 1, .kv_tokens = 0};
  if (pool > 1) {
    const WeightId gate = b.weight(WeightClass::other, "indexer.index_kpool_compress_gate", {i.dim, m.hidden}, WeightSplit::none, m.stored.base);
    const WeightId ape = small(b, "indexer.index_kpool_compress_ape", {pool, i.dim}, WeightSplit::none, m.stored.base);
    const op::Compress pooled{.tokens = t, .sequence_length = b.run(), .width = i.dim, .ratio = pool, .training = b.training(WeightClass::other)};
    const ValueId scores = b.linear(x, gate, i.dim, WeightClass::other, "indexer.index_kpool_compress_gate");
    const ValueId y = b.call(pooled, {k, scores}, {ape}).front();
    if (pooled.rows() > 0) {
      k = y;
      call.key_ratio = pool;
      call.kv_tokens = pooled.rows() * pool * b.context().cp;
    }
  }
  k = b.gather_context(k);
  if (call.kv_tokens == 0 && b.context().cp > 1) call.kv_tokens = rows(b, k);
  return b.call(call, {q, k, weights}).front();
}

}  // namespace

ValueId mix(Builder& b, const ModelSpec& m, const GqaAttention& a, ValueId x, Stream&) {
  const std::int64_t heads = local(b, a.heads), kv = local(b, a.kv_heads), t = rows(b, x), seq = b.context().sequence_length;
  Qkv p = qkv(b, m, a, x);
  const auto norm = [&] {
    if (a.qk_norm == QkNorm::full_width) {
      p.q = rms(b, m, b.sum_statistics(p.q, sizeof(float), true), "q_norm");
      p.k = rms(b, m, b.sum_statistics(p.k, sizeof(float), true), "k_norm");
    } else if (a.qk_norm != QkNorm::none) {
      const bool weight = a.qk_norm == QkNorm::per_head;
      p.q = head_norm(b, m, p.q, "q_norm", heads, a.head_dim, weight);
      p.k = head_norm(b, m, p.k, "k_norm", kv, a.head_dim, weight);
    }
  };
  if (!a.norm_after_rotation) norm();
  const std::int64_t rotary = a.rope.rotary_dim > 0 ? a.rope.rotary_dim : a.head_dim;
  p.q = rotate(b, a.rope, p.q, heads, a.head_dim, std::min(rotary, a.head_dim), false);
  p.k = rotate(b, a.rope, p.k, kv, a.head_dim, std::min(rotary, a.head_dim), false);
  if (a.norm_after_rotation) norm();

  std::int64_t topk = 0;
  const ValueId indices = a.index_topk > 0 ? block_indices(b, m, a, x, topk) : -1;
  std::vector<WeightId> sinks;
  ValueId y = -1;
  if (indices >= 0) {
    if (a.sinks) sinks.push_back(small(b, "sinks", {a.heads}, WeightSplit::column, m.stored.base));
    p.k = b.gather_context(p.k);
    p.v = a.k_is_v ? p.k : b.gather_context(p.v);
    const op::SparseAttention call{.tokens = t, .sequence_length = seq, .heads = heads, .kv_heads = kv, .d_qk = a.head_dim, .d_v = a.v_head_dim, .topk = topk,
                                   .block = a.index_block, .latent = false, .sinks = a.sinks, .kv_tokens = b.context().cp > 1 ? rows(b, p.k) : 0, .training = b.training(WeightClass::other)};
    y = b.call(call, std::array{p.q, p.k, p.v, indices}, sinks).front();
  } else {
    if (a.sinks) sinks.push_back(sink_weights(b, "sinks", a.heads, m.stored.base));
    const op::Attention call{.tokens = t, .sequence_length = seq, .heads = heads, .kv_heads = kv, .d_qk = a.head_dim, .d_v = a.v_head_dim,
                             .window = a.window.value_or(0), .sinks = a.sinks, .training = b.training(WeightClass::other)};
    y = attend(b, call, std::array{p.q, p.k, p.v}, sinks);
  }
  const std::int64_t width = heads * a.v_head_dim;
  std::int64_t gate_width = width;
  if (a.gate == OutputGate::head_wise) p.gate = project(b, m, x, "g_proj", a.heads, attention, WeightSplit::column), gate_width = heads;
  if (a.gate == OutputGate::projection) p.gate = project(b, m, x, "g_proj", a.heads * a.v_head_dim, attention, WeightSplit::column);
  if (p.gate >= 0) y = b.call(op::MulGate{.tokens = t, .width = width, .gate_width = gate_width}, {y, p.gate}).front();
  return project(b, m, y, "o_proj", m.hidden, attention, WeightSplit::row, a.o_bias);
}

ValueId mix(Builder& b, const ModelSpec& m, const MlaAttention& a, ValueId x, Stream& stream) {
  const std::int64_t heads = local(b, a.heads), t = rows(b, x), seq = b.context().sequence_length, d_qk = a.nope + a.rope_dim, block = a.nope + a.v;
  ValueId q_latent = x;
  if (a.q_lora > 0) q_latent = rms(b, m, project(b, m, x, "q_a_proj", a.q_lora, attention), "q_a_layernorm");
  ValueId q = project(b, m, q_latent, a.q_lora > 0 ? "q_b_proj" : "q_proj", a.heads * d_qk, attention, WeightSplit::column);

  ValueId latent = project(b, m, x, "kv_a_proj_with_mqa", a.kv_lora + a.rope_dim, attention), k_rope = -1;
  if (a.rope_dim > 0) {
    const auto parts = b.call(op::Split{.tokens = t, .first = a.kv_lora, .second = a.rope_dim}, {latent});
    latent = parts[0];
    k_rope = rotate(b, a.rope, parts[1], 1, a.rope_dim, a.rope_dim, false);
  }
  latent = rms(b, m, latent, "kv_a_layernorm");
  const WeightId kv_b = b.weight(attention, "kv_b_proj.weight", {a.heads * block, a.kv_lora}, WeightSplit::column, stored(m, attention));
  std::vector<WeightId> sinks;
  if (a.sinks) sinks.push_back(a.indexer ? small(b, "sinks", {a.heads}, WeightSplit::column) : sink_weights(b, "sinks", a.heads));

  ValueId y = -1;
  if (!a.indexer) {
    q = rotate(b, a.rope, q, heads, d_qk, a.rope_dim, true);
    const ValueId kv = b.linear(latent, kv_b, heads * block, attention, "kv_b_proj");
    const auto parts = b.call(op::Split{.tokens = t, .groups = heads, .first = a.nope, .second = a.v}, {kv});
    const op::Attention call{.tokens = t, .sequence_length = seq, .heads = heads, .kv_heads = heads, .d_qk = d_qk, .d_v = a.v, .sinks = a.sinks,
                             .shared_key = a.rope_dim, .training = b.training(WeightClass::other), .scale = a.rope.score_scale == 1 ? 0 : a.rope.score_scale / std::sqrt(static_cast<double>(d_qk))};
    std::vector<ValueId> values{q, parts[0]};
    if (k_rope >= 0) values.push_back(k_rope);
    values.push_back(parts[1]);
    y = attend(b, call, values, sinks);
  } else {
    const std::int64_t pool = std::max<std::int64_t>(1, a.indexer->key_pool), topk = std::max<std::int64_t>(1, a.indexer->topk / pool);
    if (!a.indexer->shared) {
      stream.indices = lightning_indices(b, m, a, x, q_latent, topk, pool);
      stream.made_indices = true;
    } else if (stream.indices < 0) {
      stream.indices = b.input("indices", {t, topk}, DType::i32, false);
    }
    // The absorbed form: queries go into the latent space, where one key serves all heads; outputs come back through the value rows.
    op::HeadLinear absorb{.tokens = t, .heads = heads, .in = a.kv_lora, .block = block, .begin = 0, .count = a.nope, .transposed = true,
                          .weight = b.held(attention), .training = b.training(attention), .lora_rank = b.lora_rank(attention), .lora_scale = lora_scale(b, attention)};
    std::vector<WeightId> weights{kv_b};
    for (const WeightId w : b.adapters(kv_b, "kv_b_proj", a.kv_lora, a.heads * block, WeightSplit::none, WeightSplit::column)) weights.push_back(w);
    ValueId key = latent;
    if (a.rope_dim > 0) {
      const auto parts = b.call(op::Split{.tokens = t, .groups = heads, .first = a.nope, .second = a.rope_dim}, {q});
      const ValueId q_rope = rotate(b, a.rope, parts[1], heads, a.rope_dim, a.rope_dim, false);
      q = b.call(absorb, std::array{parts[0]}, weights).front();
      q = b.call(op::Join{.tokens = t, .groups = heads, .first = a.kv_lora, .second = a.rope_dim}, {q, q_rope}).front();
      key = b.call(op::Join{.tokens = t, .first = a.kv_lora, .second = a.rope_dim}, {latent, k_rope}).front();
    } else {
      q = b.call(absorb, std::array{q}, weights).front();
    }
    key = b.gather_context(key);
    const op::SparseAttention call{.tokens = t, .sequence_length = seq, .heads = heads, .kv_heads = 1, .d_qk = a.kv_lora + a.rope_dim, .d_v = a.kv_lora,
                                   .topk = topk, .block = pool, .latent = true, .sinks = a.sinks, .kv_tokens = b.context().cp > 1 ? rows(b, key) : 0, .training = b.training(WeightClass::other),
                                   .scale = a.rope.score_scale / std::sqrt(static_cast<double>(d_qk))};
    y = b.call(call, std::array{q, key, stream.indices}, sinks).front();
    op::HeadLinear back = absorb;
    back.begin = a.nope, back.count = a.v, back.transposed = false;
    y = b.call(back, std::array{y}, weights).front();
  }
  if (a.gate != OutputGate::none) {
    const ValueId gate = project(b, m, x, "g_proj", a.heads * a.v, attention, WeightSplit::column);
    y = b.call(op::MulGate{.tokens = t, .width = heads * a.v, .gate_width = heads * a.v}, {y, gate}).front();
  }
  return project(b, m, y, "o_proj", m.hidden, attention, WeightSplit::row);
}

}  // namespace moeplan::compose
