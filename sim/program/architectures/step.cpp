/// Step-3 (multi-matrix factorised attention) and Step-3.5 (head-wise gates, sliding layers with heads of their own).

#include <fmt/format.h>

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {
namespace {

std::vector<bool> listed_layers(const ConfigReader& text, std::int64_t layers) {
  std::vector<bool> out(static_cast<std::size_t>(layers), !text.has("moe_layers_enum"));
  for (const auto l : text.integers({"moe_layers_enum"}, 0, ImportLimits::layers))
    if (l < layers) out[static_cast<std::size_t>(l)] = true;
  return out;
}

Mixer step_moe(const ConfigReader& text, std::int64_t hidden, std::int64_t layer) {
  MoeFfn f = moe(text, hidden, layer);
  f.shared_intermediate = text.dim_or({"share_expert_dim"}, 0);
  f.layout = ExpertLayout::separate_3d;
  f.score_bias = text.flag({"use_moe_router_bias"}, false);
  return f;
}

void step_names(ModelSpec& m) {
  m.renames = {{"moe.shared_experts.", "share_expert."}, {"moe.gate.e_score_correction_bias", "moe.router_bias"}, {"moe.experts.gate_proj", "moe.gate_proj.weight"},
               {"moe.experts.up_proj", "moe.up_proj.weight"}, {"moe.experts.down_proj", "moe.down_proj.weight"}};
}

}  // namespace

ModelSpec step3(const ConfigReader& root) {
  const ConfigReader text = root.text();
  ModelSpec m = start(root, text, "step");
  GqaAttention attention = gqa(text, m);
  attention.q_latent = text.dim({"share_q_dim"});
  const std::int64_t layers = text.layers();
  const auto sparse = listed_layers(text, layers);
  for (std::int64_t l = 0; l < layers; ++l) {
    const bool moe_layer = sparse[static_cast<std::size_t>(l)];
    m.layers.push_back(decoder_layer(attention, moe_layer ? step_moe(text, m.hidden, l) : Mixer(dense(text)), "self_attn", moe_layer ? "moe" : "mlp"));
  }
  if (const auto vision = root.maybe_section("vision_config")) m.vision = step3_vision(root, *vision, m.hidden);
  step_names(m);
  note_uncovered(m);
  return m;
}

ModelSpec step3p5(const ConfigReader& root) {
  const ConfigReader text = root.text();
  ModelSpec m = start(root, text, "step");
  GqaAttention full = gqa(text, m);
  full.qk_norm = QkNorm::per_head;
  if (text.flag({"use_head_wise_attn_gate"}, false)) full.gate = OutputGate::head_wise;
  GqaAttention sliding = full;
  sliding.window = text.maybe_dim({"sliding_window"}, 1);
  if (const auto other = text.maybe_section("attention_other_setting")) {
    sliding.heads = other->dim_or({"num_attention_heads"}, full.heads, 1);
    sliding.kv_heads = other->dim_or({"num_attention_groups"}, full.kv_heads, 1);
    sliding.head_dim = sliding.v_head_dim = other->dim_or({"head_dim"}, full.head_dim, 1);
    (void)other->width(sliding.heads, sliding.head_dim, "num_attention_heads");
    if (sliding.heads % sliding.kv_heads) other->refuse("num_attention_groups", fmt::format("{} heads cannot share {} groups", sliding.heads, sliding.kv_heads));
  }
  const std::int64_t layers = text.layers(), mtp = text.integer_or({"num_nextn_predict_layers"}, 0, 0, 64);
  const auto words = text.words_per_layer({"layer_types"}, layers, {"full_attention", "sliding_attention"});
  const auto attention = [&](std::int64_t l) {
    const auto i = static_cast<std::size_t>(l);
    return i < words.size() && words[i] == "sliding_attention" ? sliding : full;
  };
  const auto sparse = listed_layers(text, layers);
  for (std::int64_t l = 0; l < layers; ++l) {
    const bool moe_layer = sparse[static_cast<std::size_t>(l)];
    m.layers.push_back(decoder_layer(attention(l), moe_layer ? step_moe(text, m.hidden, l) : Mixer(dense(text)), "self_attn", moe_layer ? "moe" : "mlp"));
  }
  m.mtp_prefix = m.layer_prefix;
  m.mtp_first = layers;
  for (std::int64_t i = 0; i < mtp; ++i) {
    m.mtp_layers.push_back(decoder_layer(attention(layers + i), dense(text)));
    const std::string p = fmt::format("model.layers.{}.", layers + i);
    for (const char* name : {"enorm.weight", "hnorm.weight", "transformer.shared_head.norm.weight"}) m.mtp_extra.push_back({p + name, {m.hidden}});
    m.mtp_extra.push_back({p + "eh_proj.weight", {m.hidden, 2 * m.hidden}});
    m.mtp_copies.push_back({p + "transformer.shared_head.output.weight", {m.vocabulary, m.hidden}});
  }
  step_names(m);
  if (root.has("vision_config")) m.uncovered.push_back("vision tower (its tensors are not known and not counted)");
  note_uncovered(m);
  return m;
}

}  // namespace moeplan::import
