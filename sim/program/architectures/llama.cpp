/// Llama, Qwen2/2.5, Qwen3 dense; Qwen2-MoE, Qwen3-MoE, Qwen3-VL-MoE; Mixtral; OLMoE: GQA decoders that differ in biases and norms.

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {
namespace {

bool is(const ConfigReader& text, const ModelSpec& m, std::string_view part) {
  return text.text_or({"model_type"}, m.architecture).find(part) != std::string::npos;
}

/// Layers that are MoE: decoder_sparse_step and mlp_only_layers (Qwen2-MoE onwards).
std::vector<bool> sparse_layers(const ConfigReader& text, std::int64_t layers) {
  const std::int64_t step = text.dim_or({"decoder_sparse_step"}, 1, 1);
  std::vector<bool> out;
  for (std::int64_t l = 0; l < layers; ++l) out.push_back((l + 1) % step == 0);
  for (const auto l : text.integers({"mlp_only_layers"}, 0, ImportLimits::layers))
    if (l < layers) out[static_cast<std::size_t>(l)] = false;
  return out;
}

}  // namespace

ModelSpec qwen_moe(const ConfigReader& root) {
  const ConfigReader text = root.text();
  ModelSpec m = start(root, text, "llama");
  const std::int64_t layers = text.layers();
  GqaAttention attention = gqa(text, m);
  const bool qwen3 = is(text, m, "wen3"), qwen2 = !qwen3 && is(text, m, "wen2");
  attention.qkv_bias = text.flag({"qkv_bias", "attention_bias"}, qwen2);
  attention.o_bias = text.flag({"attention_bias"}, false);
  if (qwen2) attention.o_bias = false;
  if (qwen3) attention.qk_norm = QkNorm::per_head;
  const bool fused = is(text, m, "vl_moe") || is(text, m, "VLMoe");  // Qwen3-VL keeps all experts of a layer in one tensor
  const auto sparse = sparse_layers(text, layers);
  for (std::int64_t l = 0; l < layers; ++l) {
    if (!has_experts(text) || !sparse[static_cast<std::size_t>(l)]) {
      m.layers.push_back(decoder_layer(attention, dense(text)));
      continue;
    }
    MoeFfn f = moe(text, m.hidden, l);
    f.shared_intermediate = text.dim_or({"shared_expert_intermediate_size"}, 0);
    f.shared_gate = f.shared_intermediate > 0;
    if (fused) f.layout = ExpertLayout::fused_transposed;
    m.layers.push_back(decoder_layer(attention, f));
  }
  m.renames = {{"mlp.shared_experts.", "mlp.shared_expert."}};
  if (const auto vision = root.maybe_section("vision_config")) {
    m.embedding_name = "embed_tokens.weight", m.norm_name = "norm", m.layer_prefix = "layers.";
    nest(m, "model.language_model.", false);
    if (vision->has("depth") && vision->has("out_hidden_size")) m.vision = qwen_vision(*vision);
    else m.uncovered.push_back("vision tower (its fields are not known)");
  }
  note_uncovered(m);
  return m;
}

ModelSpec llama(const ConfigReader& root) {
  const ConfigReader text = root.text();
  if (has_experts(text)) return qwen_moe(root);  // never silently dense
  ModelSpec m = start(root, text, "llama");
  GqaAttention attention = gqa(text, m);
  const bool qwen2 = is(text, m, "wen2"), qwen3 = is(text, m, "wen3");
  const bool bias = text.flag({"attention_bias", "qkv_bias"}, qwen2);
  attention.qkv_bias = bias;
  attention.o_bias = bias && !qwen2;
  if (qwen3) attention.qk_norm = QkNorm::per_head;
  const std::int64_t layers = text.layers();
  const auto window = text.maybe_dim({"sliding_window"}, 0);
  const bool sliding = window.value_or(0) > 0 && text.flag({"use_sliding_window"}, !qwen2 && !qwen3);
  const std::int64_t first = qwen2 || qwen3 ? text.dim_or({"max_window_layers"}, 0) : 0;
  for (std::int64_t l = 0; l < layers; ++l) {
    GqaAttention a = attention;
    if (sliding && l >= first) a.window = window;
    m.layers.push_back(decoder_layer(a, dense(text)));
  }
  note_uncovered(m);
  return m;
}

ModelSpec mixtral(const ConfigReader& root) {
  ModelSpec m = start(root, root, "mixtral");
  GqaAttention attention = gqa(root, m);
  if (const auto window = root.maybe_dim({"sliding_window"}, 1)) attention.window = window;
  const std::int64_t layers = root.layers();
  for (std::int64_t l = 0; l < layers; ++l) m.layers.push_back(decoder_layer(attention, moe(root, m.hidden, l), "self_attn", "block_sparse_moe"));
  rename_experts_w123(m);
  return m;
}

ModelSpec olmoe(const ConfigReader& root) {
  ModelSpec m = start(root, root, "olmoe");
  GqaAttention attention = gqa(root, m);
  attention.qkv_bias = attention.o_bias = root.flag({"attention_bias"}, false);
  attention.qk_norm = QkNorm::full_width;
  const std::int64_t layers = root.layers();
  for (std::int64_t l = 0; l < layers; ++l) {
    MoeFfn f = moe(root, m.hidden, l);
    f.normalise = root.flag({"norm_topk_prob"}, false);
    m.layers.push_back(decoder_layer(attention, f));
  }
  return m;
}

}  // namespace moeplan::import
