/// gpt-oss: GQA with sinks and biases, alternating windows, biased router and experts (MXFP4 in the release).

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec gpt_oss(const ConfigReader& root) {
  ModelSpec m = start(root, root, "gpt_oss");
  GqaAttention attention = gqa(root, m);
  attention.qkv_bias = attention.o_bias = root.flag({"attention_bias"}, true);
  attention.sinks = true;
  const std::int64_t layers = root.layers();
  const auto words = root.words_per_layer({"layer_types"}, layers, {"full_attention", "sliding_attention"});
  for (std::int64_t l = 0; l < layers; ++l) {
    GqaAttention a = attention;
    if (words.empty() ? l % 2 == 0 : words[static_cast<std::size_t>(l)] == "sliding_attention") a.window = root.dim({"sliding_window"});
    MoeFfn f = moe(root, m.hidden, l);
    f.activation = Activation::clamped_swiglu;
    f.bias = f.router_bias = f.interleaved = true;
    f.layout = ExpertLayout::fused_transposed;
    m.layers.push_back(decoder_layer(a, f));
  }
  m.renames = {{"mlp.gate.", "mlp.router."}};
  return m;
}

}  // namespace moeplan::import
