/// LongCat-Flash: each layer has two MLA blocks and two dense feed-forwards, and experts on a shortcut beside them; router rows
/// without weights ("zero experts").

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec longcat(const ConfigReader& root) {
  ModelSpec m = start(root, root, "longcat");
  const MlaAttention attention = mla(root, m);
  const std::int64_t layers = root.layers();
  const DenseFfn ffn = dense(root, {"ffn_hidden_size", "intermediate_size"});
  for (std::int64_t l = 0; l < layers; ++l) {
    MoeFfn f = moe(root, m.hidden, l);
    f.zero_experts = root.integer_or({"zero_expert_num"}, 0, 0, ImportLimits::experts);
    f.score_bias = true;
    f.router_bias = root.flag({"router_bias"}, false);
    LayerSpec layer;
    layer.sublayers.push_back({.scope = "self_attn.0", .mixer = attention, .pre_norm = "input_layernorm.0"});
    layer.sublayers.push_back({.scope = "mlps.0", .mixer = ffn, .pre_norm = "post_attention_layernorm.0"});
    layer.sublayers.push_back({.scope = "mlp", .mixer = f, .input = SublayerInput::previous_normed});
    layer.sublayers.push_back({.scope = "self_attn.1", .mixer = attention, .pre_norm = "input_layernorm.1"});
    layer.sublayers.push_back({.scope = "mlps.1", .mixer = ffn, .pre_norm = "post_attention_layernorm.1"});
    m.layers.push_back(std::move(layer));
  }
  // The release ships one MTP layer that no field announces: MLA, a dense feed-forward, eh_proj, five norms, a copy of the embedding.
  const std::int64_t mtp = root.integer_or({"num_nextn_predict_layers"}, 1, 0, 1);
  if (mtp > 0) {
    const std::string p = "model.mtp.layers.0.";
    m.mtp_prefix = "model.mtp.layers.";
    m.mtp_layers.push_back(decoder_layer(attention, ffn, "self_attn", "transformer_layer.mlp"));
    for (const char* name : {"enorm.weight", "hnorm.weight", "norm.weight"}) m.mtp_extra.push_back({p + name, {m.hidden}});
    m.mtp_extra.push_back({p + "eh_proj.weight", {m.hidden, 2 * m.hidden}});
    m.mtp_copies.push_back({"model.mtp.embed_tokens.weight", {m.vocabulary, m.hidden}});
    m.notes.push_back("one MTP layer is counted apart that no field announces (its rule is fitted to the release's total)");
  }
  m.renames = {{"mlp.gate.", "mlp.router.classifier."}, {"mlp.router.classifier.e_score_correction_bias", "mlp.router.e_score_correction_bias"}};
  note_uncovered(m);
  return m;
}

}  // namespace moeplan::import
