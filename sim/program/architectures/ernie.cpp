/// ERNIE-4.5 MoE: layers from moe_layer_start_index to moe_layer_end_index in steps of moe_layer_interval are MoE.

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec ernie(const ConfigReader& root) {
  ModelSpec m = start(root, root, "ernie");
  GqaAttention attention = gqa(root, m);
  attention.qkv_bias = attention.o_bias = root.flag({"use_bias"}, false);
  const std::int64_t layers = root.layers(), first = root.dim_or({"moe_layer_start_index"}, 0), interval = root.dim_or({"moe_layer_interval"}, 1, 1);
  std::int64_t last = root.integer_or({"moe_layer_end_index"}, -1, -1, ImportLimits::layers);
  if (last < 0) last = layers - 1;
  for (std::int64_t l = 0; l < layers; ++l) {
    if (l < first || l > last || (l + 1) % interval != 0) {
      m.layers.push_back(decoder_layer(attention, dense(root)));
      continue;
    }
    MoeFfn f = moe(root, m.hidden, l);
    f.score_bias = true;
    f.score_bias_rank = 2;
    m.layers.push_back(decoder_layer(attention, f));
  }
  m.renames = {{"mlp.gate.e_score_correction_bias", "mlp.moe_statics.e_score_correction_bias"}};
  return m;
}

}  // namespace moeplan::import
