/// MiniMax-M1 (lightning attention with softmax layers), M2/M2.5 (full-width qk-norm), M3 (block-sparse GQA with an index branch).

#include <fmt/format.h>

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec minimax_m1(const ConfigReader& root) {
  ModelSpec m = start(root, root, "minimax");
  const GqaAttention full = gqa(root, m);
  const LightningAttention linear{.heads = full.heads, .head_dim = full.head_dim};
  const std::int64_t layers = root.layers();
  const auto types = root.per_layer({"attn_type_list"}, layers, 0, 1);
  for (std::int64_t l = 0; l < layers; ++l) {
    const bool is_linear = !types.empty() && types[static_cast<std::size_t>(l)] == 0;
    MoeFfn f = moe(root, m.hidden, l);
    f.shared_intermediate = root.dim_or({"shared_intermediate_size"}, 0);
    m.layers.push_back(decoder_layer(is_linear ? Mixer(linear) : Mixer(full), f, "self_attn", "block_sparse_moe"));
  }
  rename_experts_w123(m);
  return m;
}

ModelSpec minimax_m2(const ConfigReader& root) {
  ModelSpec m = start(root, root, "minimax");
  GqaAttention attention = gqa(root, m);
  if (root.flag({"use_qk_norm"}, false)) {
    const std::string kind = root.text_or({"qk_norm_type"}, "per_layer");
    if (kind != "per_layer" && kind != "per_head") root.refuse("qk_norm_type", "unknown word " + shown(kind), "known: per_layer, per_head");
    attention.qk_norm = kind == "per_layer" ? QkNorm::full_width : QkNorm::per_head;
  }
  const std::int64_t layers = root.layers();
  for (std::int64_t l = 0; l < layers; ++l) {
    MoeFfn f = moe(root, m.hidden, l);
    f.shared_intermediate = root.dim_or({"shared_intermediate_size"}, 0);
    f.score_bias = root.flag({"use_routing_bias"}, false);
    m.layers.push_back(decoder_layer(attention, f, "self_attn", "block_sparse_moe"));
  }
  if (root.integer_or({"num_mtp_modules"}, 0, 0, 64) > 0) m.notes.push_back("num_mtp_modules announces MTP modules; the released weights have none: not counted");
  m.renames = {{"gate.e_score_correction_bias", "e_score_correction_bias"}};
  rename_experts_w123(m);
  return m;
}

ModelSpec minimax_m3(const ConfigReader& root) {
  const ConfigReader text = root.text();
  ModelSpec m = start(root, text, "minimax");
  GqaAttention attention = gqa(text, m);
  if (text.flag({"use_qk_norm"}, false)) attention.qk_norm = text.text_or({"qk_norm_type"}, "per_head") == "per_layer" ? QkNorm::full_width : QkNorm::per_head;
  if (text.flag({"attention_output_gate"}, false)) attention.gate = OutputGate::projection;
  const std::int64_t layers = text.layers();
  const auto sparse_ffn = moe_layers(text, layers);
  const auto sparse = text.maybe_section("sparse_attention_config");
  const auto frequency = sparse ? sparse->per_layer({"sparse_attention_freq"}, layers, 0, 1) : std::vector<std::int64_t>{};
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto i = static_cast<std::size_t>(l);
    GqaAttention a = attention;
    if (sparse && sparse->flag({"use_sparse_attention"}, true) && (frequency.empty() || frequency[i] == 1)) {
      a.index_heads = sparse->dim({"sparse_num_index_heads"});
      a.index_dim = sparse->dim({"sparse_index_dim"});
      a.index_block = sparse->dim({"sparse_block_size"});
      a.index_topk = sparse->width(sparse->dim({"sparse_topk_blocks"}), sparse->dim({"sparse_block_size"}), "sparse_topk_blocks");
      (void)sparse->width(a.index_heads, a.index_dim, "sparse_num_index_heads");
    }
    if (!sparse_ffn[i]) {
      m.layers.push_back(decoder_layer(a, dense(text, {"dense_intermediate_size", "intermediate_size"})));
      continue;
    }
    MoeFfn f = moe(text, m.hidden, l);
    f.score_bias = text.flag({"use_routing_bias"}, false);
    m.layers.push_back(decoder_layer(a, f, "self_attn", "block_sparse_moe"));
  }
  if (root.has("vision_config")) m.uncovered.push_back("vision tower (its tensors are not known and not counted)");
  if (text.integer_or({"num_mtp_modules", "num_nextn_predict_layers"}, 0, 0, 64) > 0) m.notes.push_back("multi-token prediction is announced, but its tensors are not known: not counted");
  m.renames = {{"gate.e_score_correction_bias", "e_score_correction_bias"}};
  rename_experts_w123(m);
  if (root.has("text_config")) nest(m, "language_model.", true);
  return m;
}

}  // namespace moeplan::import
