/// Kimi-Linear, Kimi-K3 and K3.1-Pro: KDA with MLA (or gated DSA) on the listed layers, LatentMoE, block attention residuals.
/// `model_type` is the same for all of them; the switches decide.

#include <fmt/format.h>

#include <bit>

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {

ModelSpec kimi_linear(const ConfigReader& root) {
  const ConfigReader text = root.text();
  ModelSpec m = start(root, text, "kimi");
  const std::int64_t layers = text.layers();
  const ConfigReader linear = text.section("linear_attn_config");
  KdaAttention kda{.heads = linear.dim({"num_heads"}), .head_dim = linear.dim({"head_dim"}), .conv = linear.dim_or({"short_conv_kernel_size"}, 4, 1), .gate_lower_bound = {}};
  (void)linear.width(kda.heads, kda.head_dim, "num_heads");
  if (linear.flag({"use_full_rank_gate"}, false)) {
    kda.gate = OutputGate::projection;
    kda.stored_a_log = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(kda.heads)));  // K3 stores 128 for 96 heads
  }
  if (linear.has("gate_lower_bound")) kda.gate_lower_bound = linear.number_or({"gate_lower_bound"}, 0);

  MlaAttention full = mla(text, m);
  std::vector<bool> is_full(static_cast<std::size_t>(layers), false), is_dsa = is_full;
  for (const auto l : linear.integers({"full_attn_layers"}, 1, layers)) is_full[static_cast<std::size_t>(l - 1)] = true;
  std::int64_t named = 0;
  for (const auto l : linear.integers({"kda_layers"}, 1, layers)) {
    if (is_full[static_cast<std::size_t>(l - 1)]) linear.refuse("kda_layers", fmt::format("layer {} is in full_attn_layers too", l));
    ++named;
  }
  std::optional<DsaIndexer> index = indexer(text);
  if (index) is_dsa = is_full;
  if (const auto dsa = text.maybe_section("dsa_config")) {
    index = indexer(*dsa);
    for (const auto l : dsa->integers({"dsa_layers"}, 1, layers)) is_dsa[static_cast<std::size_t>(l - 1)] = true;
  }
  const auto full_count = std::count(is_full.begin(), is_full.end(), true);
  if (named > 0 && named + full_count != layers)
    linear.refuse("kda_layers", fmt::format("{} KDA and {} full layers are listed, but there are {} layers", named, full_count, layers));
  if (index && full.q_lora == 0) text.refuse("q_lora_rank", "an indexer reads the query latent, but there is none");

  const auto sparse = moe_layers(text, layers);
  const std::int64_t block = text.dim_or({"attn_res_block_size"}, 0);
  if (block > 0) m.residual = ResidualKind::attention_residual, m.residual_head_name = "model.output_attn_res_";
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto i = static_cast<std::size_t>(l);
    Mixer attention = kda;
    if (is_full[i]) {
      MlaAttention a = full;
      if (is_dsa[i]) a.indexer = index;
      attention = a;
    }
    Mixer ffn = dense(text);
    if (sparse[i] && has_experts(text)) {
      MoeFfn f = moe(text, m.hidden, l);
      f.score_bias = true;
      f.latent = text.dim_or({"routed_expert_hidden_size"}, 0);
      f.latent_norm = f.latent > 0 && text.flag({"latent_moe_use_norm"}, false);
      ffn = f;
    }
    const bool moe_layer = std::holds_alternative<MoeFfn>(ffn);
    LayerSpec layer = decoder_layer(std::move(attention), std::move(ffn), "self_attn", moe_layer ? "block_sparse_moe" : "mlp");
    if (block > 0) {
      layer.stores_block = l % block == 0;
      layer.sublayers[0].residual_name = "self_attention_res_";
      layer.sublayers[1].residual_name = "mlp_res_";
    }
    m.layers.push_back(std::move(layer));
  }
  const std::int64_t mtp = text.integer_or({"num_nextn_predict_layers"}, 0, 0, 64);
  if (mtp > 0) deepseek_mtp(m, mtp, m.layers.back(), false);
  rename_experts_w123(m);
  if (root.has("text_config")) nest(m, "language_model.", true);
  if (const auto vision = root.maybe_section("vision_config")) m.vision = moonvit(*vision, m.hidden);
  note_uncovered(m);
  return m;
}

}  // namespace moeplan::import
