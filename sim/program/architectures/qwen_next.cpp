/// Qwen3-Next and Qwen3.5: Gated DeltaNet three layers out of four, gated GQA on the fourth.

#include <fmt/format.h>

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec qwen_next(const ConfigReader& root) {
  const ConfigReader text = root.text();
  ModelSpec m = start(root, text, "qwen_next");
  m.unit_offset_norm = true;
  const bool nested = root.has("text_config");  // Qwen3.5 splits in_proj and fuses the experts; Qwen3-Next is flat
  GdnAttention linear{.k_heads = text.dim({"linear_num_key_heads"}), .v_heads = text.dim({"linear_num_value_heads"}),
                      .k_dim = text.dim({"linear_key_head_dim"}), .v_dim = text.dim({"linear_value_head_dim"}),
                      .conv = text.dim_or({"linear_conv_kernel_dim"}, 4, 1), .split_projections = nested};
  (void)text.width(linear.k_heads, linear.k_dim, "linear_num_key_heads");
  (void)text.width(linear.v_heads, linear.v_dim, "linear_num_value_heads");
  if (linear.v_heads % linear.k_heads) text.refuse("linear_num_value_heads", fmt::format("{} value heads cannot share {} key heads", linear.v_heads, linear.k_heads));
  GqaAttention full = gqa(text, m);
  full.qkv_bias = full.o_bias = text.flag({"attention_bias"}, false);
  full.qk_norm = QkNorm::per_head;
  if (text.flag({"attn_output_gate"}, true)) full.gate = OutputGate::in_q_proj;

  const std::int64_t layers = text.layers(), interval = text.dim_or({"full_attention_interval"}, 4, 1);
  const auto words = text.words_per_layer({"layer_types"}, layers, {"full_attention", "linear_attention"});
  const auto only_dense = text.integers({"mlp_only_layers"}, 0, ImportLimits::layers);
  const bool sparse = has_experts(text);
  const auto ffn = [&](std::int64_t l) -> Mixer {
    if (!sparse || std::find(only_dense.begin(), only_dense.end(), l) != only_dense.end()) return dense(text);
    MoeFfn f = moe(text, m.hidden);
    f.shared_intermediate = text.dim_or({"shared_expert_intermediate_size"}, 0);
    f.shared_gate = f.shared_intermediate > 0;
    if (nested) f.layout = ExpertLayout::fused_gate_up;
    return f;
  };
  for (std::int64_t l = 0; l < layers; ++l) {
    const bool is_full = words.empty() ? (l + 1) % interval == 0 : words[static_cast<std::size_t>(l)] == "full_attention";
    if (is_full) m.layers.push_back(decoder_layer(full, ffn(l)));
    else m.layers.push_back(decoder_layer(linear, ffn(l), "linear_attn"));
  }
  m.renames = {{"mlp.shared_experts.", "mlp.shared_expert."}};
  // The flat form announces no MTP layer but ships one.
  const std::int64_t mtp = text.integer_or({"mtp_num_hidden_layers", "num_nextn_predict_layers"}, nested ? 0 : 1, 0, 64);
  for (std::int64_t i = 0; i < mtp; ++i) m.mtp_layers.push_back(decoder_layer(full, ffn(layers)));
  if (mtp > 0) {
    m.mtp_extra.push_back({"mtp.fc.weight", {m.hidden, 2 * m.hidden}});
    for (const char* name : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"}) m.mtp_extra.push_back({fmt::format("mtp.{}.weight", name), {m.hidden}});
  }
  if (nested) {
    m.embedding_name = "embed_tokens.weight", m.norm_name = "norm", m.layer_prefix = "layers.";
    nest(m, "model.language_model.", false);
  }
  if (const auto vision = root.maybe_section("vision_config")) m.vision = qwen_vision(*vision);
  note_uncovered(m);
  return m;
}

}  // namespace moeplan::import
