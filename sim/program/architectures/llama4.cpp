/// Llama-4 Scout and Maverick: GQA without stored qk-norm, one shared expert, experts transposed in one tensor; MoE every n-th layer.

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec llama4(const ConfigReader& root) {
  const ConfigReader text = root.text();
  ModelSpec m = start(root, text, "llama4");
  GqaAttention attention = gqa(text, m);
  attention.qkv_bias = attention.o_bias = text.flag({"attention_bias"}, false);
  if (text.flag({"use_qk_norm"}, false)) attention.qk_norm = QkNorm::weightless;
  const std::int64_t layers = text.layers(), step = text.dim_or({"interleave_moe_layer_step"}, 1, 1);
  const auto chunk = text.maybe_dim({"attention_chunk_size"}, 1);
  const auto no_rope = text.integers({"no_rope_layers"}, 0, 1);  // 1: rotates, 0: NoPE (every fourth by default)
  for (std::int64_t l = 0; l < layers; ++l) {
    GqaAttention a = attention;
    const auto i = static_cast<std::size_t>(l);
    a.rope.enabled = i < no_rope.size() ? no_rope[i] == 1 : (l + 1) % 4 != 0;
    if (a.rope.enabled && chunk) a.window = chunk;  // chunked attention sees at most a chunk
    if ((l + 1) % step != 0) {
      m.layers.push_back(decoder_layer(a, dense(text, {"intermediate_size_mlp"}), "self_attn", "feed_forward"));
      continue;
    }
    MoeFfn f = moe(text, m.hidden, l);
    f.score = RouterScore::sigmoid;
    f.normalise = false;
    f.shared_intermediate = f.intermediate;
    f.layout = ExpertLayout::fused_transposed;
    m.layers.push_back(decoder_layer(a, f, "self_attn", "feed_forward"));
  }
  m.renames = {{"feed_forward.gate.weight", "feed_forward.router.weight"}, {"feed_forward.shared_experts.", "feed_forward.shared_expert."}};
  if (root.has("text_config")) nest(m, "language_model.", true);
  if (const auto vision = root.maybe_section("vision_config")) m.vision = llama4_vision(*vision, m.hidden);
  if (chunk) m.notes.push_back("chunked attention is taken as a sliding window of the chunk's length");
  note_uncovered(m);
  return m;
}

}  // namespace moeplan::import
