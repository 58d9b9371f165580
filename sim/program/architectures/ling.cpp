/// Ling 2.0 (BailingMoeV2): fused qkv, per-head qk-norm, sigmoid router with expert bias.

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec ling(const ConfigReader& root) {
  ModelSpec m = start(root, root, "ling");
  GqaAttention attention = gqa(root, m);
  attention.fused_qkv = true;
  attention.qkv_bias = root.flag({"use_qkv_bias"}, false);
  attention.o_bias = root.flag({"use_bias"}, false);
  if (root.flag({"use_qk_norm"}, true)) attention.qk_norm = QkNorm::per_head;
  const std::int64_t layers = root.layers();
  const auto sparse = moe_layers(root, layers);
  const auto layer = [&](std::int64_t l, bool moe_layer) {
    if (!moe_layer) return decoder_layer(attention, dense(root), "attention");
    MoeFfn f = moe(root, m.hidden, l);
    f.score_bias = root.flag({"moe_router_enable_expert_bias"}, true);
    return decoder_layer(attention, f, "attention");
  };
  for (std::int64_t l = 0; l < layers; ++l) m.layers.push_back(layer(l, sparse[static_cast<std::size_t>(l)]));
  if (root.integer_or({"num_nextn_predict_layers"}, 0, 0, 64) > 0) m.notes.push_back("multi-token prediction is announced, but its tensors are not known: not counted");
  m.embedding_name = "model.word_embeddings.weight";
  m.renames = {{"attention.qkv_proj", "attention.query_key_value"}, {"attention.o_proj", "attention.dense"}, {"attention.q_norm", "attention.query_layernorm"},
               {"attention.k_norm", "attention.key_layernorm"}, {"mlp.gate.e_score_correction_bias", "mlp.gate.expert_bias"}};
  return m;
}

}  // namespace moeplan::import
