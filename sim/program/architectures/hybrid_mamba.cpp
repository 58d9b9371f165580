/// Granite-4-H (Mamba-2) and Jamba (Mamba-1): state-space layers with attention here and there.

#include <fmt/format.h>

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec granite_hybrid(const ConfigReader& root) {
  ModelSpec m = start(root, root, "granite");
  GqaAttention attention = gqa(root, m);
  attention.qkv_bias = attention.o_bias = root.flag({"attention_bias"}, false);
  if (root.text_or({"position_embedding_type"}, "rope") == "nope") attention.rope.enabled = false;
  Mamba2Mixer mamba{.heads = root.dim({"mamba_n_heads"}), .head_dim = root.dim({"mamba_d_head"}), .groups = root.dim({"mamba_n_groups"}),
                    .state = root.dim({"mamba_d_state"}), .conv = root.dim_or({"mamba_d_conv"}, 4, 1)};
  (void)root.width(mamba.heads, mamba.head_dim, "mamba_n_heads");
  (void)root.width(mamba.groups, mamba.state, "mamba_n_groups");
  if (mamba.heads % mamba.groups) root.refuse("mamba_n_groups", fmt::format("{} heads do not divide into {} groups", mamba.heads, mamba.groups));
  const std::int64_t layers = root.layers(), shared = root.dim_or({"shared_intermediate_size"}, 0);
  const auto words = root.words_per_layer({"layer_types"}, layers, {"attention", "mamba"});
  for (std::int64_t l = 0; l < layers; ++l) {
    const std::string word = words.empty() ? "attention" : words[static_cast<std::size_t>(l)];
    const bool is_mamba = word == "mamba";
    Mixer ffn;
    if (has_experts(root)) {
      MoeFfn f = moe(root, m.hidden, l);
      f.layout = ExpertLayout::fused_gate_up;
      f.shared_intermediate = shared;
      f.shared_fused = true;
      ffn = f;
    } else {
      DenseFfn f = dense(root, {"shared_intermediate_size", "intermediate_size"});
      ffn = f;
    }
    m.layers.push_back(decoder_layer(is_mamba ? Mixer(mamba) : Mixer(attention), std::move(ffn), is_mamba ? "mamba" : "self_attn", has_experts(root) ? "block_sparse_moe" : "shared_mlp"));
  }
  m.renames = {{"block_sparse_moe.gate.weight", "block_sparse_moe.router.layer.weight"}, {"block_sparse_moe.shared_experts.gate_up_proj", "shared_mlp.input_linear"},
               {"block_sparse_moe.shared_experts.down_proj", "shared_mlp.output_linear"}, {"block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"},
               {"block_sparse_moe.experts.down_proj", "block_sparse_moe.output_linear.weight"}};
  return m;
}

ModelSpec jamba(const ConfigReader& root) {
  ModelSpec m = start(root, root, "jamba");
  GqaAttention attention = gqa(root, m);
  attention.rope.enabled = false;
  Mamba1Mixer mamba;
  mamba.inner = root.width(root.dim_or({"mamba_expand"}, 2, 1), m.hidden, "mamba_expand");
  mamba.state = root.dim_or({"mamba_d_state"}, 16, 1);
  mamba.conv = root.dim_or({"mamba_d_conv"}, 4, 1);
  mamba.dt_rank = root.is_scalar({"mamba_dt_rank"}) ? root.dim({"mamba_dt_rank"}) : (m.hidden + 15) / 16;  // "auto"
  const std::int64_t layers = root.layers();
  const std::int64_t attention_period = root.dim_or({"attn_layer_period"}, 8, 1), attention_offset = root.dim_or({"attn_layer_offset"}, 4);
  const std::int64_t expert_period = root.dim_or({"expert_layer_period"}, 2, 1), expert_offset = root.dim_or({"expert_layer_offset"}, 1);
  for (std::int64_t l = 0; l < layers; ++l) {
    const bool is_attention = l % attention_period == attention_offset, is_moe = has_experts(root) && l % expert_period == expert_offset;
    LayerSpec layer = decoder_layer(is_attention ? Mixer(attention) : Mixer(mamba), is_moe ? Mixer(moe(root, m.hidden, l)) : Mixer(dense(root)), is_attention ? "self_attn" : "mamba", "feed_forward");
    layer.sublayers[1].pre_norm = "pre_ff_layernorm";
    m.layers.push_back(std::move(layer));
  }
  m.norm_name = "model.final_layernorm";
  m.renames = {{"feed_forward.gate.weight", "feed_forward.router.weight"}};
  return m;
}

}  // namespace moeplan::import
