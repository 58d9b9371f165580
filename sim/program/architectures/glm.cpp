/// GLM-4.5 (GQA), GLM-5 and 5.2 (MLA with DSA, shared indexers), GLM-5.3-Flash (KDA and DSA, four-stream hyper-connections).

#include <fmt/format.h>

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec glm4_moe(const ConfigReader& root) {
  ModelSpec m = start(root, root, "glm");
  GqaAttention attention = gqa(root, m);
  attention.qkv_bias = root.flag({"attention_bias"}, false);  // covers q, k and v only
  if (root.flag({"use_qk_norm"}, false)) attention.qk_norm = QkNorm::per_head;
  const std::int64_t layers = root.layers();
  const auto sparse = moe_layers(root, layers);
  const auto experts = [&](std::int64_t l) {
    MoeFfn f = moe(root, m.hidden, l);
    f.score = RouterScore::sigmoid;
    f.score_bias = true;
    return f;
  };
  for (std::int64_t l = 0; l < layers; ++l)
    m.layers.push_back(sparse[static_cast<std::size_t>(l)] ? decoder_layer(attention, experts(l)) : decoder_layer(attention, dense(root)));
  // GLM-4.6 has the same fields but ships no copies; with the shards at hand it is read.
  if (const auto mtp = root.integer_or({"num_nextn_predict_layers"}, 0, 0, 64); mtp > 0) deepseek_mtp(m, mtp, decoder_layer(attention, experts(0)), true);
  note_uncovered(m);
  return m;
}

namespace {

/// Which layers own an indexer: indexer_types, else index_topk_freq behind an offset, else all.
std::vector<bool> owns_indexer(const ConfigReader& text, std::int64_t layers) {
  std::vector<bool> out;
  const auto words = text.words_per_layer({"indexer_types"}, layers, {"full", "shared"});
  const std::int64_t frequency = text.dim_or({"index_topk_freq"}, 1, 1), offset = text.dim_or({"index_skip_topk_offset"}, 0);
  for (std::int64_t l = 0; l < layers; ++l) {
    if (words.empty()) {
      out.push_back(l < offset || (l - offset + 1) % frequency == 0 || frequency == 1);
      continue;
    }
    const std::string& word = words[static_cast<std::size_t>(l)];
    out.push_back(word == "full");
  }
  if (!out.empty() && !out.front()) text.refuse("indexer_types", "the first layer shares indices, but no layer before it has any");
  return out;
}

}  // namespace

ModelSpec glm_dsa(const ConfigReader& root) {
  ModelSpec m = start(root, root, "glm");
  MlaAttention attention = mla(root, m);
  const auto index = indexer(root);
  if (index && attention.q_lora == 0) root.refuse("q_lora_rank", "an indexer reads the query latent, but there is none");
  const std::int64_t layers = root.layers();
  const auto owns = owns_indexer(root, layers);
  const auto sparse = moe_layers(root, layers, 3);  // three dense layers unless the file says otherwise
  const bool corrected = root.text_or({"topk_method"}, "") == "noaux_tc";
  const auto layer = [&](std::int64_t l, bool moe_layer, bool owner) {
    MlaAttention a = attention;
    a.indexer = index;
    if (a.indexer) a.indexer->shared = !owner;
    if (!moe_layer) return decoder_layer(a, dense(root));
    MoeFfn f = moe(root, m.hidden, l);
    f.score = RouterScore::sigmoid;
    f.score_bias = corrected;
    return decoder_layer(a, f);
  };
  for (std::int64_t l = 0; l < layers; ++l) m.layers.push_back(layer(l, sparse[static_cast<std::size_t>(l)], owns[static_cast<std::size_t>(l)]));
  if (const auto mtp = root.integer_or({"num_nextn_predict_layers"}, 0, 0, 64); mtp > 0) deepseek_mtp(m, mtp, layer(layers - 1, true, true), false);
  note_uncovered(m);
  return m;
}

ModelSpec hunyuan_v4(const ConfigReader& root) {
  ModelSpec m = start(root, root, "hunyuan");
  MlaAttention attention = mla(root, m);
  attention.sinks = root.flag({"learnable_sink"}, false);
  const auto index = indexer(root);
  const std::int64_t layers = root.layers();
  const auto owns = owns_indexer(root, layers);
  const auto sparse = moe_layers(root, layers);
  if (root.flag({"enable_ihc"}, false)) {
    m.residual = ResidualKind::input_hyper;
    m.streams = root.integer({"hc_mult"}, 1, 64);
    m.hyper_head_affine = false;
    m.residual_head_name = "model.hc_head_";
  }
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto i = static_cast<std::size_t>(l);
    MlaAttention a = attention;
    a.indexer = index;
    if (a.indexer) a.indexer->shared = !owns[i];
    LayerSpec layer;
    if (sparse[i]) {
      MoeFfn f = moe(root, m.hidden, l);
      f.score_bias = true;
      layer = decoder_layer(a, f);
    } else {
      layer = decoder_layer(a, dense(root));
    }
    if (m.residual == ResidualKind::input_hyper) layer.sublayers[0].residual_name = "hc_attn_", layer.sublayers[1].residual_name = "hc_mlp_";
    m.layers.push_back(std::move(layer));
  }
  if (root.integer_or({"num_nextn_predict_layers"}, 0, 0, 64) > 0) m.notes.push_back("multi-token prediction is announced, but its tensors are not known: not counted");
  m.renames = {{"mlp.gate.e_score_correction_bias", "mlp.expert_bias"}, {"self_attn.g_proj", "self_attn.linear_gate"}, {"self_attn.sinks", "self_attn.sink"}};
  return m;
}

ModelSpec glm5_next(const ConfigReader& root) {
  const ConfigReader text = root.text();
  ModelSpec m = start(root, text, "glm");
  const std::int64_t layers = text.layers();
  const ConfigReader linear = text.section("linear_attn_config");
  KdaAttention kda{.heads = linear.dim({"num_heads"}), .head_dim = linear.dim({"head_dim"}), .conv = linear.dim_or({"short_conv_kernel_size"}, 4, 1), .gate_lower_bound = {}};
  (void)linear.width(kda.heads, kda.head_dim, "num_heads");
  if (linear.has("gate_lower_bound")) kda.gate_lower_bound = linear.number_or({"gate_lower_bound"}, 0);
  MlaAttention full = mla(text, m);
  full.indexer = indexer(text);
  if (text.flag({"mhc"}, text.has("hc_mult"))) m.residual = ResidualKind::hyper, m.streams = text.integer({"hc_mult"}, 1, 64), m.residual_head_name.clear();
  const auto words = text.words_per_layer({"layer_types"}, layers, {"full_attention", "deepseek_sparse_attention", "linear_attention"});
  std::vector<bool> is_full(static_cast<std::size_t>(layers), false);
  for (const auto l : linear.integers({"full_attn_layers"}, 0, layers - 1)) is_full[static_cast<std::size_t>(l)] = true;  // 0-indexed here
  for (std::size_t l = 0; l < words.size() && l < is_full.size(); ++l) {
    const bool linear_word = words[l] == "linear_attention";
    if (linear_word == is_full[l] && linear.has("full_attn_layers")) text.refuse("layer_types", fmt::format("layer {} is {}, against linear_attn_config.full_attn_layers", l, shown(words[l])));
    is_full[l] = !linear_word;
  }
  const auto sparse = moe_layers(text, layers);
  const auto layer = [&](Mixer attention, bool moe_layer) {
    Mixer ffn = dense(text);
    if (moe_layer) {
      MoeFfn f = moe(text, m.hidden);
      f.score_bias = text.text_or({"topk_method"}, "noaux_tc") == "noaux_tc";
      ffn = f;
    }
    LayerSpec out = decoder_layer(std::move(attention), std::move(ffn));
    if (m.residual == ResidualKind::hyper) out.sublayers[0].residual_name = "hc_attn.", out.sublayers[1].residual_name = "hc_mlp.";
    return out;
  };
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto i = static_cast<std::size_t>(l);
    m.layers.push_back(is_full[i] ? layer(full, sparse[i]) : layer(kda, sparse[i]));
  }
  m.embedding_name = "embed_tokens.weight", m.norm_name = "norm", m.layer_prefix = "layers.";
  nest(m, "model.language_model.", false);
  if (const auto mtp = text.integer_or({"num_nextn_predict_layers"}, 0, 0, 64); mtp > 0) deepseek_mtp(m, mtp, layer(full, true), false);
  if (const auto vision = root.maybe_section("vision_config")) m.vision = glm_vision(*vision);
  if (full.indexer && full.indexer->key_pool > 0 && !text.flag({"index_kpool_compress"}, true)) text.refuse("index_kpool_compress", "keys pooled without weights are not known here", "true is");
  note_uncovered(m);
  return m;
}

}  // namespace moeplan::import
