/// DeepSeek-V4: compressed attention with one key-value head, grouped output, four-stream hyper-connections, hash-routed first layers.

#include <fmt/format.h>

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec deepseek_v4(const ConfigReader& root) {
  ModelSpec m = start(root, root, "deepseek_v4");
  m.streams = root.integer({"hc_mult"}, 1, 64);
  m.residual = ResidualKind::hyper;
  m.residual_head_name = "hc_head_";
  m.layer_prefix = "layers.", m.embedding_name = "embed.weight", m.norm_name = "norm", m.head_name = "head.weight";

  CompressedAttention attention{.heads = root.dim({"num_attention_heads"}), .head_dim = root.dim({"head_dim"}), .q_lora = root.dim({"q_lora_rank"}),
                                .rope_dim = 0, .o_groups = root.dim({"o_groups"}), .o_lora = root.dim({"o_lora_rank"}),
                                .window = root.dim({"sliding_window"}), .ratio = 0,
                                .index_heads = root.dim({"index_n_heads"}), .index_dim = root.dim({"index_head_dim"}), .index_topk = root.dim({"index_topk"})};
  const double part = root.number_or({"partial_rotary_factor"}, 1.0);
  attention.rope_dim = root.dim_or({"qk_rope_head_dim"}, static_cast<std::int64_t>(static_cast<double>(attention.head_dim) * (part > 0 && part <= 1 ? part : 1.0)), 1);
  const std::int64_t q_width = root.width(attention.heads, attention.head_dim, "num_attention_heads");
  (void)root.width(attention.o_groups, attention.o_lora, "o_groups");
  (void)root.width(attention.index_heads, attention.index_dim, "index_n_heads");
  if (q_width % attention.o_groups) root.refuse("o_groups", fmt::format("query width {} does not divide into {} groups", q_width, attention.o_groups));

  const std::int64_t layers = root.layers(), hashed = root.dim_or({"num_hash_layers"}, 0);
  auto ratios = root.per_layer({"compress_ratios"}, layers, 0, 1 << 20);
  if (ratios.empty()) {  // transformers 5: two rates, and layer types or the pattern of the release (two plain, then 4 and 128 in turn)
    const ConfigReader rates = root.section("compress_rates");
    const std::int64_t sparse = rates.integer({"compressed_sparse_attention"}, 1, 1 << 20), heavy = rates.integer({"heavily_compressed_attention"}, 1, 1 << 20);
    const auto words = root.words_per_layer({"layer_types"}, layers, {"full_attention", "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"});
    for (std::int64_t l = 0; l < layers; ++l) {
      if (words.empty()) ratios.push_back(l < 2 ? 0 : l % 2 == 0 ? sparse : heavy);
      else ratios.push_back(words[static_cast<std::size_t>(l)] == "compressed_sparse_attention" ? sparse : words[static_cast<std::size_t>(l)] == "heavily_compressed_attention" ? heavy : 0);
    }
    if (words.empty()) m.notes.push_back("compress_rates without layer_types: layers taken in the release's pattern");
  }
  const auto layer = [&](std::int64_t ratio, bool hash) {
    CompressedAttention a = attention;
    a.ratio = ratio;
    MoeFfn f = moe(root, m.hidden);
    f.hash_routed = hash;
    f.score_bias = !hash;
    LayerSpec out;
    out.sublayers.push_back({.scope = "attn", .mixer = a, .pre_norm = "attn_norm", .residual_name = "hc_attn_"});
    out.sublayers.push_back({.scope = "ffn", .mixer = f, .pre_norm = "ffn_norm", .residual_name = "hc_ffn_"});
    return out;
  };
  for (std::int64_t l = 0; l < layers; ++l) m.layers.push_back(layer(ratios[static_cast<std::size_t>(l)], l < hashed));
  const std::int64_t mtp = root.integer_or({"num_nextn_predict_layers"}, 0, 0, 64);
  m.mtp_prefix = "mtp.";
  for (std::int64_t i = 0; i < mtp; ++i) {
    m.mtp_layers.push_back(layer(0, false));
    const std::string p = fmt::format("mtp.{}.", i);
    for (const char* name : {"e_proj.weight", "h_proj.weight"}) m.mtp_extra.push_back({p + name, {m.hidden, m.hidden}});
    for (const char* name : {"enorm.weight", "hnorm.weight", "norm.weight"}) m.mtp_extra.push_back({p + name, {m.hidden}});
    m.mtp_extra.push_back({p + "hc_head_fn", {m.streams, m.streams * m.hidden}});
    m.mtp_extra.push_back({p + "hc_head_base", {m.streams}});
    m.mtp_extra.push_back({p + "hc_head_scale", {1}});
  }
  m.renames = {{"ffn.gate.e_score_correction_bias", "ffn.gate.bias"}};
  rename_experts_w123(m);
  for (const auto& [ours, theirs] : {std::pair{"shared_experts.gate_proj", "shared_experts.w1"}, std::pair{"shared_experts.up_proj", "shared_experts.w3"}, std::pair{"shared_experts.down_proj", "shared_experts.w2"}})
    m.renames.emplace_back(ours, theirs);
  if (m.stored.layout == PackedLayout::scale_inv) m.stored.layout = PackedLayout::scale;
  if (root.text_or({"expert_dtype"}, "") == "fp4") m.stored.experts = DType::mxfp4;
  note_uncovered(m);
  return m;
}

}  // namespace moeplan::import
