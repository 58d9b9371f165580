/// GPT-3 and the Megatron papers' models: LayerNorm and biases everywhere, learned positions, MLP of four times the width.

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec megatron_gpt(const ConfigReader& root) {
  ModelSpec m = start(root, root, "gpt");
  GqaAttention attention = gqa(root, m);
  attention.fused_qkv = true;
  attention.qkv_bias = attention.o_bias = root.flag({"attention_bias"}, true);
  const bool learned = root.text_or({"position_embedding_type"}, "learned_absolute") == "learned_absolute";
  attention.rope.enabled = !learned;
  m.norm = root.text_or({"normalization"}, "LayerNorm") == "RMSNorm" ? NormKind::rms : NormKind::layer_norm_bias;
  m.tied_head = root.flag({"tie_word_embeddings"}, true);
  if (learned) {
    m.learned_positions = m.max_positions;
    if (m.learned_positions == 0) root.refuse("max_position_embeddings", "is missing (learned positions need it)");
    m.positions_name = "wpe.weight";
  }
  DenseFfn ffn{.intermediate = root.dim_or({"intermediate_size", "n_inner", "ffn_hidden_size"}, 4 * m.hidden, 1), .gated = false,
               .bias = root.flag({"mlp_bias"}, true), .activation = activation(root)};
  ffn.gated = ffn.activation == Activation::silu;
  const std::int64_t layers = root.layers();
  for (std::int64_t l = 0; l < layers; ++l) {
    LayerSpec layer = decoder_layer(attention, ffn, "attn", "mlp");
    layer.sublayers[0].pre_norm = "ln_1";
    layer.sublayers[1].pre_norm = "ln_2";
    m.layers.push_back(std::move(layer));
  }
  m.layer_prefix = "h.", m.embedding_name = "wte.weight", m.norm_name = "ln_f";
  m.renames = {{"attn.qkv_proj", "attn.c_attn"}, {"attn.o_proj", "attn.c_proj"}, {"mlp.up_proj", "mlp.c_fc"}, {"mlp.down_proj", "mlp.c_proj"}};
  return m;
}

}  // namespace moeplan::import
