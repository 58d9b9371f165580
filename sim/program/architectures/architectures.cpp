#include "sim/program/architectures/architecture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/program/architectures/families.hpp"

namespace moeplan {
namespace {

const std::vector<Architecture>& table() {
  static const std::vector<Architecture> all{
      {"arctic", {"ArcticForCausalLM", "arctic"}, import::arctic},
      {"dbrx", {"DbrxForCausalLM", "dbrx"}, import::dbrx},
      {"deepseek", {"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2"}, import::deepseek},
      {"deepseek-v4", {"DeepseekV4ForCausalLM", "deepseek_v4"}, import::deepseek_v4},
      {"dots", {"Dots1ForCausalLM", "dots1"}, import::dots},
      {"ernie", {"Ernie4_5_MoeForCausalLM", "Ernie4_5MoeForCausalLM", "ernie4_5_moe"}, import::ernie},
      {"gemma-4", {"Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "gemma4", "gemma4_text"}, import::gemma4},
      {"glm-4.5", {"Glm4MoeForCausalLM", "glm4_moe"}, import::glm4_moe},
      {"glm-5", {"GlmMoeDsaForCausalLM", "glm_moe_dsa"}, import::glm_dsa},
      {"glm-5.3", {"Glm5NextForConditionalGeneration", "glm5_next", "glm5_next_text"}, import::glm5_next},
      {"gpt", {"MegatronGPTForCausalLM", "megatron_gpt", "megatron-gpt"}, import::megatron_gpt},
      {"gpt-oss", {"GptOssForCausalLM", "gpt_oss"}, import::gpt_oss},
      {"granite", {"GraniteMoeHybridForCausalLM", "granitemoehybrid"}, import::granite_hybrid},
      {"grok", {"Grok1ModelForCausalLM", "Grok1ForCausalLM", "grok-1", "grok1"}, import::grok},
      {"hunyuan", {"HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe"}, import::hunyuan_v1},
      {"hunyuan-4", {"HYV4ForCausalLM", "hy_v4"}, import::hunyuan_v4},
      {"jamba", {"JambaForCausalLM", "jamba"}, import::jamba},
      {"kimi", {"KimiK3ForConditionalGeneration", "KimiK31ForConditionalGeneration", "KimiLinearForCausalLM", "kimi_k3", "kimi_k31", "kimi_linear"}, import::kimi_linear},
      {"kimi-k2.5", {"KimiK25ForConditionalGeneration", "kimi_k25"}, import::kimi_k25},
      {"ling", {"BailingMoeV2ForCausalLM", "bailing_moe_v2"}, import::ling},
      {"llama", {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "llama", "qwen2", "qwen3", "mistral"}, import::llama},
      {"llama-4", {"Llama4ForConditionalGeneration", "Llama4ForCausalLM", "llama4", "llama4_text"}, import::llama4},
      {"longcat", {"LongcatFlashForCausalLM", "longcat_flash"}, import::longcat},
      {"mimo", {"MiMoV2FlashForCausalLM", "mimo_v2_flash"}, import::mimo},
      {"minimax-m1", {"MiniMaxM1ForCausalLM", "minimax_m1"}, import::minimax_m1},
      {"minimax-m2", {"MiniMaxM2ForCausalLM", "minimax_m2"}, import::minimax_m2},
      {"minimax-m3", {"MiniMaxM3ForCausalLM", "MiniMaxM3ForConditionalGeneration", "minimax_m3"}, import::minimax_m3},
      {"mixtral", {"MixtralForCausalLM", "mixtral"}, import::mixtral},
      {"nemotron", {"NemotronHForCausalLM", "nemotron_h"}, import::nemotron_h},
      {"olmoe", {"OlmoeForCausalLM", "olmoe"}, import::olmoe},
      {"phi-moe", {"PhiMoEForCausalLM", "PhimoeForCausalLM", "phimoe"}, import::phi_moe},
      {"qwen-moe", {"Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe", "qwen3_vl_moe_text"}, import::qwen_moe},
      {"qwen-next", {"Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM", "qwen3_next", "qwen3_5_moe", "qwen3_5"}, import::qwen_next},
      {"step-3", {"Step3VLForConditionalGeneration", "Step3TextForCausalLM", "step3_vl", "step3_text"}, import::step3},
      {"step-3.5", {"Step3p5ForCausalLM", "step3p5"}, import::step3p5},
  };
  return all;
}

const Architecture* named(std::string_view name) {
  for (const Architecture& a : table())
    if (std::find(a.answers_to.begin(), a.answers_to.end(), name) != a.answers_to.end()) return &a;
  return nullptr;
}

/// Fields that say nothing about shapes.
bool is_noise(const std::string& key) {
  static constexpr std::array noise{"architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "use_cache", "auto_map", "initializer_range",
                                    "attention_dropout", "rms_norm_eps", "layer_norm_eps", "norm_eps", "router_aux_loss_coef", "output_router_logits",
                                    "pretraining_tp", "id2label", "label2id", "text_config", "vision_config", "quantization_config", "max_window_layers", "seq_aux", "aux_loss_alpha"};
  return key.ends_with("_token_id") || std::find(noise.begin(), noise.end(), key) != noise.end();
}

/// "; close to X, but these fields are foreign to it: ..." for the architecture that imports this with the fewest unread fields.
std::string nearest(const Json& config, const std::string& file) {
  const Architecture* best = nullptr;
  std::vector<std::string> foreign;
  for (const Architecture& a : table()) {
    std::set<std::string> seen;
    const ConfigReader reader(config, file, &seen);
    std::vector<std::string> unread;
    try {
      (void)a.import(reader);
      for (const auto& key : reader.text().keys())
        if (!seen.contains(key) && !is_noise(key)) unread.push_back(key);
    } catch (const InputError&) {
      continue;
    }
    if (!best || unread.size() < foreign.size()) best = &a, foreign = std::move(unread);
  }
  if (!best || foreign.size() > 8) return {};
  if (foreign.empty()) return fmt::format("; it has the fields of {} (set model_type to {} to import it so)", best->name, best->answers_to.back());
  std::string list;
  for (const auto& key : foreign) list += (list.empty() ? "" : ", ") + shown(key, 40);
  return fmt::format("; close to {}, but these fields are foreign to it: {}", best->name, list);
}

/// What no single field says: experts of a layer stay below 2^56 weights at the width they work at.
ModelSpec checked(ModelSpec m, const ConfigReader& root, const std::string& name) {
  m.name = name;
  for (const auto* layers : {&m.layers, &m.mtp_layers})
    for (const LayerSpec& layer : *layers)
      for (const Sublayer& s : layer.sublayers)
        if (const auto* f = std::get_if<MoeFfn>(&s.mixer); f && static_cast<double>(f->experts) * static_cast<double>(f->intermediate) * static_cast<double>(std::max(f->latent, m.hidden)) > 0x1p56)
          root.refuse("moe_intermediate_size", fmt::format("{} experts of {} x {} are more than 2^56 weights a layer", f->experts, f->intermediate, std::max(f->latent, m.hidden)));
  return m;
}

}  // namespace

std::span<const Architecture> architectures() { return table(); }

ModelSpec import_model(const Json& config, const std::string& file, const std::string& name) {
  const ConfigReader root(config, file);
  const ConfigReader text = root.text();
  std::string asked;
  for (const ConfigReader* level : {&root, &text}) {
    for (const auto& cls : level->texts({"architectures"})) {
      if (asked.empty()) asked = cls;
      if (const Architecture* a = named(cls)) return checked(a->import(root), root, name);
    }
    const std::string type = level->text_or({"model_type"}, "");
    if (asked.empty()) asked = type;
    if (const Architecture* a = named(type)) return checked(a->import(root), root, name);
  }
  std::string known;
  for (const Architecture& a : table()) known += (known.empty() ? "" : ", ") + std::string(a.name);
  throw InputError(root.where(root.has("architectures") ? "architectures" : "model_type"),
                   (asked.empty() ? "neither architectures nor model_type says what this is" : "unknown architecture " + shown(asked)) + nearest(config, file), "known: " + known);
}

ModelSpec import_model_file(const std::filesystem::path& path) {
  const bool directory = std::filesystem::is_directory(path);
  const std::filesystem::path file = directory ? path / "config.json" : path;
  const Json config = load_json(file, {.max_bytes = std::size_t{8} << 20, .max_depth = 64, .tolerate_nonfinite_literals = true});
  std::filesystem::path named = directory ? std::filesystem::path(path.lexically_normal().string()) : path;
  if (directory && !named.has_filename()) named = named.parent_path();
  const std::string name = directory ? named.filename().string() : path.filename() == "config.json" && path.has_parent_path() ? path.parent_path().filename().string() : path.stem().string();
  return import_model(config, file.string(), name);
}

}  // namespace moeplan
