/// DeepSeek-V2, V3, R1, V3.1, V3.2; Moonlight, Kimi-K2 and, with a vision tower, Kimi-K2.5: MLA, one shared scope of experts.

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {
namespace {

ModelSpec deepseek_text(const ConfigReader& root, const ConfigReader& text) {
  ModelSpec m = start(root, text, "deepseek");
  MlaAttention attention = mla(text, m);
  attention.indexer = indexer(text);
  if (attention.indexer && attention.q_lora == 0) text.refuse("q_lora_rank", "an indexer reads the query latent, but there is none");
  const std::int64_t layers = text.layers();
  const auto sparse = has_experts(text) ? moe_layers(text, layers) : std::vector<bool>(static_cast<std::size_t>(layers), false);
  // transformers writes V3 configs without these two: its V3 code has no other choice.
  const std::string type = text.text_or({"model_type"}, m.architecture);
  const bool v3 = type.find("deepseek_v3") != std::string::npos || type.find("DeepseekV3") != std::string::npos || type.find("kimi_k2") != std::string::npos;
  const bool sigmoid = text.text_or({"scoring_func"}, v3 ? "sigmoid" : "softmax") == "sigmoid";
  const bool corrected = text.text_or({"topk_method"}, sigmoid ? "noaux_tc" : "greedy") == "noaux_tc";
  for (std::int64_t l = 0; l < layers; ++l) {
    if (!sparse[static_cast<std::size_t>(l)]) {
      m.layers.push_back(decoder_layer(attention, dense(text)));
      continue;
    }
    MoeFfn f = moe(text, m.hidden, l);
    f.score_bias = corrected;
    if (sigmoid) f.score = RouterScore::sigmoid;
    m.layers.push_back(decoder_layer(attention, f));
  }
  const std::int64_t mtp = text.integer_or({"num_nextn_predict_layers"}, 0, 0, 64);
  if (mtp > 0) {
    MlaAttention a = attention;
    LayerSpec layer = m.layers.back();
    layer.sublayers.front().mixer = a;
    deepseek_mtp(m, mtp, layer, true);
  }
  return m;
}

}  // namespace

ModelSpec deepseek(const ConfigReader& root) {
  ModelSpec m = deepseek_text(root, root.text());
  note_uncovered(m);
  return m;
}

ModelSpec kimi_k25(const ConfigReader& root) {
  ModelSpec m = deepseek_text(root, root.text());
  nest(m, "language_model.", true);
  if (const auto vision = root.maybe_section("vision_config")) m.vision = moonvit(*vision, m.hidden);
  note_uncovered(m);
  return m;
}

}  // namespace moeplan::import
