/// Phi-3.5-MoE, DBRX, Arctic, Grok-1: MoE decoders with names of their own.

#include <fmt/format.h>

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec phi_moe(const ConfigReader& root) {
  ModelSpec m = start(root, root, "phi");
  GqaAttention attention = gqa(root, m);
  attention.qkv_bias = attention.o_bias = root.flag({"attention_bias"}, false);
  if (const auto window = root.maybe_dim({"sliding_window"}, 1); window && *window < m.max_positions) attention.window = window;
  m.norm = NormKind::layer_norm_bias;
  m.head_bias = root.flag({"lm_head_bias"}, false);
  const std::int64_t layers = root.layers();
  for (std::int64_t l = 0; l < layers; ++l) {
    MoeFfn experts = moe(root, m.hidden, l);
    experts.score = RouterScore::sparse_mixer, experts.normalise = false, experts.jitter = root.number_or({"router_jitter_noise"}, experts.jitter);
    if (!(experts.jitter >= 0)) root.refuse("router_jitter_noise", fmt::format("{} is negative", experts.jitter));
    m.layers.push_back(decoder_layer(attention, experts, "self_attn", "block_sparse_moe"));
  }
  m.notes.push_back("routed as SparseMixer is evaluated: the best experts, nothing drawn at random");
  rename_experts_w123(m);
  return m;
}

ModelSpec dbrx(const ConfigReader& root) {
  ModelSpec m = start(root, root, "dbrx");
  const ConfigReader attention_config = root.section("attn_config"), ffn = root.section("ffn_config");
  GqaAttention attention = gqa(root, m);
  attention.kv_heads = attention_config.dim_or({"kv_n_heads"}, attention.heads, 1);
  if (attention.heads % attention.kv_heads) attention_config.refuse("kv_n_heads", "does not divide the heads");
  attention.rope = rope(attention_config, attention.head_dim, m.notes);
  attention.fused_qkv = true;
  m.norm = NormKind::layer_norm;
  MoeFfn experts = moe(ffn, m.hidden);
  experts.layout = ExpertLayout::flat_2d;
  if (const auto act = ffn.maybe_section("ffn_act_fn")) {
    if (const std::string name = act->text_or({"name"}, "silu"); name != "silu") act->refuse("name", "unknown activation " + shown(name), "known: silu");
  }
  const std::int64_t layers = root.layers();
  for (std::int64_t l = 0; l < layers; ++l) {
    LayerSpec layer = decoder_layer(attention, experts, "norm_attn_norm.attn", "ffn");
    layer.sublayers[0].pre_norm = "norm_attn_norm.norm_1";
    layer.sublayers[1].pre_norm = "norm_attn_norm.norm_2";
    m.layers.push_back(std::move(layer));
  }
  m.layer_prefix = "transformer.blocks.", m.embedding_name = "transformer.wte.weight", m.norm_name = "transformer.norm_f";
  m.renames = {{"attn.qkv_proj", "attn.Wqkv"}, {"attn.o_proj", "attn.out_proj"}, {"ffn.gate.weight", "ffn.router.layer.weight"},
               {"ffn.experts.gate_proj", "ffn.experts.mlp.w1"}, {"ffn.experts.up_proj", "ffn.experts.mlp.v1"}, {"ffn.experts.down_proj", "ffn.experts.mlp.w2"}};
  return m;
}

ModelSpec arctic(const ConfigReader& root) {
  ModelSpec m = start(root, root, "arctic");
  const GqaAttention attention = gqa(root, m);
  const std::int64_t layers = root.layers(), frequency = root.dim_or({"moe_layer_frequency"}, 1, 1);
  const bool residual = root.flag({"use_residual"}, true), parallel = root.flag({"parallel_attn_mlp_res"}, residual);
  for (std::int64_t l = 0; l < layers; ++l) {
    if ((l + 1) % frequency != 0) {
      m.layers.push_back(decoder_layer(attention, dense(root), "self_attn", "block_sparse_moe.mlp"));
      continue;
    }
    LayerSpec layer = decoder_layer(attention, moe(root, m.hidden, l), "self_attn", "block_sparse_moe");
    if (residual && parallel) {
      layer.sublayers[1].input = SublayerInput::layer_input;
      const DenseFfn branch{.intermediate = m.hidden, .activation = activation(root)};
      layer.sublayers.insert(layer.sublayers.begin() + 1, Sublayer{.scope = "residual_mlp", .mixer = branch, .pre_norm = "residual_layernorm"});
    }
    m.layers.push_back(std::move(layer));
  }
  rename_experts_w123(m);
  m.renames.insert(m.renames.end(), {{"mlp.gate_proj", "mlp.w1"}, {"mlp.up_proj", "mlp.w3"}, {"mlp.down_proj", "mlp.w2"}});
  return m;
}

ModelSpec grok(const ConfigReader& root) {
  ModelSpec m = start(root, root, "grok");
  const GqaAttention attention = gqa(root, m);
  const std::int64_t layers = root.layers();
  for (std::int64_t l = 0; l < layers; ++l) {
    MoeFfn f = moe(root, m.hidden, l);
    f.activation = Activation::gelu;
    LayerSpec layer;
    layer.sublayers.push_back({.scope = "attn", .mixer = attention, .pre_norm = "pre_attn_norm", .post_norm = "post_attn_norm"});
    layer.sublayers.push_back({.scope = "moe_block", .mixer = f, .pre_norm = "pre_moe_norm", .post_norm = "post_moe_norm"});
    m.layers.push_back(std::move(layer));
  }
  m.renames = {{"experts.*.gate_proj", "experts.*.linear"}, {"experts.*.up_proj", "experts.*.linear_v"}, {"experts.*.down_proj", "experts.*.linear_1"}};
  return m;
}

}  // namespace moeplan::import
