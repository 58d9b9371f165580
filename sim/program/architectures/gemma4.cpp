/// Gemma-4 with experts: sliding and global GQA of different head sizes (keys are the values on global layers), a dense branch and
/// experts side by side. Shapes after the public modelling code.

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec gemma4(const ConfigReader& root) {
  const ConfigReader text = root.text();
  ModelSpec m = start(root, text, "gemma");
  GqaAttention sliding = gqa(text, m);
  sliding.qkv_bias = sliding.o_bias = text.flag({"attention_bias"}, false);
  sliding.qk_norm = QkNorm::per_head;
  GqaAttention full = sliding;
  full.head_dim = full.v_head_dim = text.dim_or({"global_head_dim"}, sliding.head_dim, 1);
  (void)text.width(full.heads, full.head_dim, "global_head_dim");
  full.k_is_v = text.flag({"attention_k_eq_v"}, false);
  if (full.k_is_v) full.kv_heads = text.dim_or({"num_global_key_value_heads"}, sliding.kv_heads, 1);
  if (full.heads % full.kv_heads) text.refuse("num_global_key_value_heads", "does not divide the heads");
  sliding.window = text.maybe_dim({"sliding_window"}, 1);
  if (text.dim_or({"hidden_size_per_layer_input"}, 0) > 0) text.refuse("hidden_size_per_layer_input", "per-layer embeddings are not known here", "the forms without them are");
  const std::int64_t layers = text.layers();
  const auto words = text.words_per_layer({"layer_types"}, layers, {"full_attention", "sliding_attention"});
  const bool experts = text.flag({"enable_moe_block"}, false);
  for (std::int64_t l = 0; l < layers; ++l) {
    const bool is_full = words.empty() ? (l + 1) % 6 == 0 : words[static_cast<std::size_t>(l)] == "full_attention";
    LayerSpec layer;
    layer.sublayers.push_back({.scope = "self_attn", .mixer = is_full ? full : sliding, .pre_norm = "input_layernorm", .post_norm = "post_attention_layernorm"});
    layer.sublayers.push_back({.scope = "mlp", .mixer = dense(text), .pre_norm = "pre_feedforward_layernorm", .post_norm = experts ? "post_feedforward_layernorm_1" : "post_feedforward_layernorm"});
    layer.extra.push_back({"layer_scalar", {1}});
    if (experts) {
      MoeFfn f = moe(text, m.hidden, l);
      f.layout = ExpertLayout::fused_gate_up;
      layer.sublayers.push_back({.scope = "moe", .mixer = f, .pre_norm = "pre_feedforward_layernorm_2", .post_norm = "post_feedforward_layernorm_2", .input = SublayerInput::previous_stream});
      layer.extra.push_back({"post_feedforward_layernorm.weight", {m.hidden}});
      layer.extra.push_back({"router.scale", {m.hidden}});
      layer.extra.push_back({"router.per_expert_scale", {f.experts}});
    }
    m.layers.push_back(std::move(layer));
  }
  m.renames = {{"moe.gate.weight", "router.proj.weight"}, {"moe.experts.", "experts."}};
  m.embedding_name = "embed_tokens.weight", m.norm_name = "norm", m.layer_prefix = "layers.";
  nest(m, "model.language_model.", false);
  if (const auto vision = root.maybe_section("vision_config")) m.vision = gemma4_vision(*vision, m.hidden);
  if (experts) m.notes.push_back("the norm over dense branch and experts together, and the layer scalars, are counted, not run");
  note_uncovered(m);
  return m;
}

}  // namespace moeplan::import
