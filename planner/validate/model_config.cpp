#include "planner/validate/model_config.hpp"

#include <fmt/format.h>

#include "core/error.hpp"

namespace moeplan::validation {
namespace {

std::int64_t need(const std::optional<std::int64_t>& value, const char* what, const std::string& name) {
  if (!value) throw InputError("model " + name, fmt::format("its {} is not known", what));
  return *value;
}

bool flag(const Json& extra, const char* key) {
  return extra.is_object() && extra.contains(key) && extra.at(key).is_boolean() && extra.at(key).get<bool>();
}

std::optional<std::int64_t> number(const Json& extra, const char* key) {
  if (!extra.is_object() || !extra.contains(key) || !extra.at(key).is_number_integer()) return std::nullopt;
  return extra.at(key).get<std::int64_t>();
}

std::string text(const Json& extra, const char* key, const char* otherwise) {
  return extra.is_object() && extra.contains(key) && extra.at(key).is_string() ? extra.at(key).get<std::string>()
                                                                               : std::string(otherwise);
}

}  // namespace

Json model_config(const ModelDims& d, const std::string& name, std::int64_t sequence) {
  const std::int64_t heads = need(d.heads, "number of heads", name);
  Json c = {{"hidden_size", need(d.hidden, "hidden size", name)},
            {"num_hidden_layers", need(d.layers, "number of layers", name)},
            {"num_attention_heads", heads},
            {"num_key_value_heads", d.kv_heads.value_or(heads)},
            {"vocab_size", need(d.vocab, "vocabulary", name)},
            {"max_position_embeddings", std::max<std::int64_t>(sequence, 2048)},
            {"tie_word_embeddings", flag(d.extra, "tied_embeddings")}};
  if (const auto latent = number(d.extra, "kv_lora_rank")) {
    const bool shared = d.shared_expert_ffn.value_or(0) > 0;
    const std::int64_t width = need(d.moe_ffn, "expert width", name);
    c["architectures"] = {"DeepseekV3ForCausalLM"};
    c["model_type"] = "deepseek_v3";
    c["kv_lora_rank"] = *latent;
    c["q_lora_rank"] = number(d.extra, "q_lora_rank") ? Json(*number(d.extra, "q_lora_rank")) : Json(nullptr);
    c["qk_nope_head_dim"] = number(d.extra, "qk_nope_head_dim").value_or(128);
    c["qk_rope_head_dim"] = number(d.extra, "qk_rope_head_dim").value_or(64);
    c["v_head_dim"] = number(d.extra, "v_head_dim").value_or(128);
    c["intermediate_size"] = need(d.ffn, "feed-forward width", name);
    c["moe_intermediate_size"] = width;
    c["n_routed_experts"] = need(d.experts, "number of experts", name);
    c["num_experts_per_tok"] = need(d.topk, "top-k", name);
    if (shared) c["n_shared_experts"] = std::max<std::int64_t>(1, *d.shared_expert_ffn / width);
    c["first_k_dense_replace"] = d.first_dense_layers.value_or(0);
    c["moe_layer_freq"] = 1;
    c["scoring_func"] = text(d.extra, "scoring_func", "softmax");
    return c;
  }
  if (d.head_dim) c["head_dim"] = *d.head_dim;
  if (d.experts) {
    const std::int64_t width = need(d.moe_ffn, "expert width", name);
    const bool shared = d.shared_expert_ffn.value_or(0) > 0;
    c["architectures"] = {shared ? "Qwen2MoeForCausalLM" : "MixtralForCausalLM"};
    c["model_type"] = shared ? "qwen2_moe" : "mixtral";
    c["intermediate_size"] = shared ? need(d.ffn, "feed-forward width", name) : width;
    c["moe_intermediate_size"] = width;
    c[shared ? "num_experts" : "num_local_experts"] = *d.experts;
    c["num_experts_per_tok"] = need(d.topk, "top-k", name);
    if (shared) c["shared_expert_intermediate_size"] = *d.shared_expert_ffn;
    return c;
  }
  c["intermediate_size"] = need(d.ffn, "feed-forward width", name);
  if (d.glu.value_or(true)) {
    const bool bias = flag(d.extra, "qkv_bias");
    c["architectures"] = {bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM"};
    c["model_type"] = bias ? "qwen2" : "llama";
    c["hidden_act"] = "silu";
    return c;
  }
  const bool learned = text(d.extra, "positions", "learned_absolute") == "learned_absolute",
             bias = !flag(d.extra, "no_bias");
  c["model_type"] = "megatron_gpt";
  c["hidden_act"] = text(d.extra, "activation", "gelu");
  c["position_embedding_type"] = learned ? "learned_absolute" : "rope";
  c["normalization"] = "LayerNorm";
  c["attention_bias"] = bias;
  c["mlp_bias"] = bias;
  return c;
}

}  // namespace moeplan::validation
