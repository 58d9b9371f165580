/// MiMo-V2-Flash: full and sliding GQA with their own key-value heads, values narrower than keys, sinks on sliding layers.

#include <fmt/format.h>

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec mimo(const ConfigReader& root) {
  ModelSpec m = start(root, root, "mimo");
  GqaAttention full = gqa(root, m);
  full.qkv_bias = root.flag({"attention_bias"}, false);
  full.sinks = root.flag({"add_full_attention_sink_bias"}, false);
  GqaAttention sliding = full;
  sliding.heads = root.dim_or({"swa_num_attention_heads"}, full.heads, 1);
  sliding.kv_heads = root.dim_or({"swa_num_key_value_heads"}, full.kv_heads, 1);
  sliding.head_dim = root.dim_or({"swa_head_dim"}, full.head_dim, 1);
  sliding.v_head_dim = root.dim_or({"swa_v_head_dim"}, full.v_head_dim, 1);
  (void)root.width(sliding.heads, std::max(sliding.head_dim, sliding.v_head_dim), "swa_num_attention_heads");
  if (sliding.heads % sliding.kv_heads) root.refuse("swa_num_key_value_heads", fmt::format("{} heads cannot share {} key-value heads", sliding.heads, sliding.kv_heads));
  sliding.sinks = root.flag({"add_swa_attention_sink_bias"}, false);
  sliding.rope.theta = root.number_or({"swa_rope_theta"}, full.rope.theta);
  sliding.window = root.maybe_dim({"sliding_window", "sliding_window_size"}, 1);
  const std::int64_t layers = root.layers();
  const auto pattern = root.per_layer({"hybrid_layer_pattern"}, layers, 0, 1);
  const auto sparse = moe_layers(root, layers);
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto i = static_cast<std::size_t>(l);
    const GqaAttention& a = !pattern.empty() && pattern[i] == 1 ? sliding : full;
    if (!sparse[i]) {
      m.layers.push_back(decoder_layer(a, dense(root)));
      continue;
    }
    MoeFfn f = moe(root, m.hidden, l);
    f.score_bias = root.text_or({"topk_method"}, "") == "noaux_tc";
    m.layers.push_back(decoder_layer(a, f));
  }
  m.renames = {{"self_attn.sinks", "self_attn.attention_sink_bias"}};
  return m;
}

}  // namespace moeplan::import
