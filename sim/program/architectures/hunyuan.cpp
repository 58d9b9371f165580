/// Hunyuan-A13B: fields per layer may be lists; qk-norm; one shared MLP. (Hy4 is in glm.cpp, whose attention it shares.)

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec hunyuan_v1(const ConfigReader& root) {
  ModelSpec m = start(root, root, "hunyuan");
  GqaAttention attention = gqa(root, m);
  attention.qkv_bias = attention.o_bias = root.flag({"attention_bias"}, false);
  if (root.flag({"use_qk_norm"}, false)) attention.qk_norm = QkNorm::per_head, attention.norm_after_rotation = true;
  if (root.flag({"use_cla"}, false)) root.refuse("use_cla", "attention shared across layers is not known here");
  const std::int64_t layers = root.layers();
  for (std::int64_t l = 0; l < layers; ++l) {
    MoeFfn f = moe(root, m.hidden, l);
    if (!root.flag({"use_mixed_mlp_moe"}, true)) f.shared_intermediate = 0;
    m.layers.push_back(decoder_layer(attention, f));
  }
  m.renames = {{"self_attn.q_norm", "self_attn.query_layernorm"}, {"self_attn.k_norm", "self_attn.key_layernorm"}, {"mlp.gate.weight", "mlp.gate.wg.weight"}, {"mlp.shared_experts.", "mlp.shared_mlp."}};
  return m;
}

}  // namespace moeplan::import
