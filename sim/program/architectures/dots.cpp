/// dots.llm1: MHA with per-head qk-norm, DeepSeek-style experts with score correction.

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec dots(const ConfigReader& root) {
  ModelSpec m = start(root, root, "dots");
  GqaAttention attention = gqa(root, m);
  attention.qkv_bias = attention.o_bias = root.flag({"attention_bias"}, false);
  attention.qk_norm = QkNorm::per_head;
  const std::int64_t layers = root.layers();
  const auto sparse = moe_layers(root, layers);
  for (std::int64_t l = 0; l < layers; ++l) {
    if (!sparse[static_cast<std::size_t>(l)]) {
      m.layers.push_back(decoder_layer(attention, dense(root)));
      continue;
    }
    MoeFfn f = moe(root, m.hidden, l);
    f.score_bias = true;
    m.layers.push_back(decoder_layer(attention, f));
  }
  return m;
}

}  // namespace moeplan::import
