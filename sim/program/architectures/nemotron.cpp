/// Nemotron-H (Nemotron-3 Nano, Super, Ultra): each block is one of Mamba-2, attention, MoE or MLP; LatentMoE from Super on.

#include <fmt/format.h>

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {
namespace {

/// Letters M (mamba), E (moe), * (attention), - (mlp), from a pattern or a list of words.
std::string blocks(const ConfigReader& root, const char* pattern, const char* list) {
  if (root.has(pattern)) {
    const std::string letters = root.text_or({pattern}, "");
    for (const char c : letters)
      if (std::string("ME*-").find(c) == std::string::npos) root.refuse(pattern, "unknown block letter " + shown(std::string(1, c)), "known: M, E, * and -");
    return letters;
  }
  std::string letters;
  for (const auto& word : root.texts({list})) {
    if (word == "mamba" || word == "linear_attention") letters += 'M';
    else if (word == "moe") letters += 'E';
    else if (word == "attention" || word == "full_attention") letters += '*';
    else if (word == "mlp") letters += '-';
    else root.refuse(list, "unknown block " + shown(word), "known: mamba, moe, attention, mlp");
  }
  return letters;
}

}  // namespace

ModelSpec nemotron_h(const ConfigReader& root) {
  ModelSpec m = start(root, root, "nemotron");
  const std::string pattern = blocks(root, "hybrid_override_pattern", "layers_block_type");
  if (pattern.empty()) root.refuse("hybrid_override_pattern", "is missing", "layers_block_type would do too");
  if (static_cast<std::int64_t>(pattern.size()) > ImportLimits::layers) root.refuse("hybrid_override_pattern", fmt::format("has {} blocks, at most {} are accepted", pattern.size(), ImportLimits::layers));
  if (root.has("num_hidden_layers") && root.layers() != static_cast<std::int64_t>(pattern.size()))
    root.refuse("num_hidden_layers", fmt::format("is {}, but the block pattern has {}", root.layers(), pattern.size()));
  const auto block = [&](char letter) {
    Sublayer s{.scope = "mixer", .pre_norm = "norm"};
    if (letter == 'M') {
      Mamba2Mixer x{.heads = root.dim({"mamba_num_heads"}), .head_dim = root.dim({"mamba_head_dim"}), .groups = root.dim({"n_groups"}),
                    .state = root.dim({"ssm_state_size"}), .conv = root.dim_or({"conv_kernel"}, 4, 1)};
      (void)root.width(x.heads, x.head_dim, "mamba_num_heads");
      (void)root.width(x.groups, x.state, "n_groups");
      if (x.heads % x.groups) root.refuse("n_groups", fmt::format("{} heads do not divide into {} groups", x.heads, x.groups));
      s.mixer = x;
    } else if (letter == '*') {
      GqaAttention a = gqa(root, m);
      a.qkv_bias = a.o_bias = root.flag({"attention_bias"}, false);
      a.rope.enabled = false;
      s.mixer = a;
    } else if (letter == 'E') {
      MoeFfn f = moe(root, m.hidden);
      f.score = RouterScore::sigmoid;
      f.score_bias = true;
      f.shared_intermediate = root.dim_or({"moe_shared_expert_intermediate_size"}, f.shared_intermediate);
      f.latent = root.dim_or({"moe_latent_size"}, 0);
      s.mixer = f;
    } else {
      s.mixer = dense(root);
    }
    return LayerSpec{.sublayers = {s}};
  };
  for (const char letter : pattern) m.layers.push_back(block(letter));
  const std::int64_t mtp = root.integer_or({"num_nextn_predict_layers"}, 0, 0, 64);
  if (mtp > 0) {
    const std::string mtp_pattern = blocks(root, "mtp_hybrid_override_pattern", "mtp_layers_block_type");
    for (const char letter : mtp_pattern) m.mtp_layers.push_back(block(letter));
    for (const char* name : {"enorm", "hnorm"}) m.mtp_extra.push_back({fmt::format("mtp.layers.0.{}.weight", name), {m.hidden}});
    m.mtp_extra.push_back({"mtp.layers.0.eh_proj.weight", {m.hidden, 2 * m.hidden}});
    m.mtp_extra.push_back({"mtp.layers.*.final_layernorm.weight", {m.hidden}});
  }
  m.layer_prefix = "backbone.layers.", m.embedding_name = "backbone.embeddings.weight", m.norm_name = "backbone.norm_f";
  m.renames = {{"routed_expert_down_proj", "fc1_latent_proj"}, {"routed_expert_up_proj", "fc2_latent_proj"}};
  note_uncovered(m);
  return m;
}

}  // namespace moeplan::import
