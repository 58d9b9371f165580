#include "sim/program/architectures/common.hpp"

#include <fmt/format.h>

#include <cmath>

namespace moeplan::import {
namespace {

constexpr ConfigReader::Names expert_names{"num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_moe_experts"};
constexpr ConfigReader::Names top_k_names{"num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts", "experts_per_token"};
constexpr ConfigReader::Names shared_names{"n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"};

ActivationNumbers numbers(const ConfigReader& text) {
  ActivationNumbers n;
  const bool oai = text.has("swiglu_alpha") || text.text_or({"model_type"}, "") == "gpt_oss";
  n.limit = text.number_or({"swiglu_limit"}, n.limit);
  n.alpha = text.number_or({"swiglu_alpha"}, oai ? n.alpha : 1.0);
  n.up_offset = oai ? 1 : 0;
  n.beta = text.number_or({"activation_situ_beta"}, n.beta);
  n.linear_beta = text.number_or({"activation_situ_linear_beta"}, n.linear_beta);
  for (const auto& [value, field] : {std::pair{n.limit, "swiglu_limit"}, std::pair{n.beta, "activation_situ_beta"}, std::pair{n.linear_beta, "activation_situ_linear_beta"}})
    if (text.has(field) && value < 0) text.refuse(field, fmt::format("{} is negative", value));
  return n;
}

}  // namespace

ModelSpec start(const ConfigReader& root, const ConfigReader& text, std::string family) {
  ModelSpec m;
  m.family = std::move(family);
  const auto classes = root.texts({"architectures"});
  m.architecture = classes.empty() ? root.text_or({"model_type"}, m.family) : classes.front();
  m.hidden = text.dim({"hidden_size", "d_model", "n_embd"});
  m.vocabulary = text.integer({"vocab_size"}, 1, ImportLimits::vocabulary);
  m.max_positions = text.maybe_dim({"max_position_embeddings", "max_position_embedding", "max_seq_len", "n_positions"}, 1).value_or(0);
  m.tied_head = text.flag({"tie_word_embeddings"}, root.flag({"tie_word_embeddings"}, false));
  m.norm_epsilon = text.number_or({"rms_norm_eps", "layer_norm_eps", "layernorm_epsilon", "layer_norm_epsilon", "norm_eps", "norm_epsilon"}, m.norm_epsilon);
  if (!(m.norm_epsilon > 0 && m.norm_epsilon < 1)) text.refuse("rms_norm_eps", fmt::format("{} is not in (0, 1)", m.norm_epsilon));
  m.stored = stored_types(root, text, m.notes);
  return m;
}

namespace {

/// LongRoPE (Ding et al. 2024, arXiv 2402.13753): a divisor for each pair, one list up to the trained context and one above it. Sine and cosine are
/// multiplied by sqrt(1 + ln s / ln original), s the stretch of the context, unless the file says by what.
void long_rope(const ConfigReader& block, const ConfigReader& text, std::int64_t head_dim, Rope& r) {
  const std::int64_t pairs = (r.rotary_dim > 0 ? r.rotary_dim : head_dim) / 2;
  const auto divisors = [&](const char* name) {
    auto out = block.positive_numbers({name});
    if (static_cast<std::int64_t>(out.size()) != pairs) block.refuse(name, fmt::format("has {} entries for {} pairs of columns", out.size(), pairs), "one for each pair that turns");
    return out;
  };
  r.short_divisors = divisors("short_factor"), r.long_divisors = divisors("long_factor");
  const auto original = static_cast<double>(r.original_positions);
  const double stretch = block.has("factor") ? r.factor : static_cast<double>(text.dim_or({"max_position_embeddings"}, r.original_positions)) / original;
  const double paper = stretch > 1 ? std::sqrt(1 + std::log(stretch) / std::log(std::max(original, 2.0))) : 1.0, given = block.number_or({"attention_factor"}, paper);
  r.magnitude = block.number_or({"short_mscale"}, given), r.long_magnitude = block.number_or({"long_mscale"}, given);
  if (!(r.magnitude > 0 && r.long_magnitude > 0)) block.refuse("short_mscale", fmt::format("{} and long_mscale {} are not both positive", r.magnitude, r.long_magnitude));
}

}  // namespace

Rope rope(const ConfigReader& text, std::int64_t head_dim, std::vector<std::string>& notes) {
  Rope r;
  const auto parameters = text.maybe_section("rope_parameters");
  const auto scaling = text.maybe_section("rope_scaling");
  const ConfigReader& theta = parameters && parameters->has("rope_theta") ? *parameters : text;
  r.theta = theta.number_or({"rope_theta"}, 10000);
  if (r.theta <= 0) theta.refuse("rope_theta", fmt::format("{} is not positive", r.theta));
  const double part = text.number_or({"partial_rotary_factor", "rotary_percent"}, parameters ? parameters->number_or({"partial_rotary_factor"}, 1.0) : 1.0);
  if (!(part > 0 && part <= 1)) text.refuse("partial_rotary_factor", fmt::format("{} is not in (0, 1]", part));
  r.rotary_dim = text.maybe_dim({"rotary_dim"}, 1).value_or(part < 1 ? static_cast<std::int64_t>(static_cast<double>(head_dim) * part) / 2 * 2 : 0);
  for (const auto* block : {scaling ? &*scaling : nullptr, parameters ? &*parameters : nullptr}) {
    if (!block) continue;
    const std::string old_name = block->text_or({"type"}, ""), new_name = block->text_or({"rope_type"}, "");
    if (!old_name.empty() && !new_name.empty() && old_name != new_name)
      block->refuse("type", fmt::format("is {} but rope_type is {}", shown(old_name), shown(new_name)), "keep one of them");
    const std::string kind = new_name.empty() ? old_name : new_name;
    if (kind.empty() || kind == "default") continue;
    if (const double alpha = kind == "dynamic" ? block->number_or({"alpha"}, 0) : 0; alpha != 0) {  // Hunyuan: another base, once and for all
      if (!(alpha > 0)) block->refuse("alpha", fmt::format("{} is not positive", alpha));
      if (head_dim > 2) r.theta *= std::pow(alpha, static_cast<double>(head_dim) / static_cast<double>(head_dim - 2));
      continue;
    }
    r.scaling = kind;
    r.factor = block->number_or({"factor"}, 1);
    if (kind == "yarn") {
      r.beta_fast = block->number_or({"beta_fast"}, r.beta_fast);
      r.beta_slow = block->number_or({"beta_slow"}, r.beta_slow);
      if (!(r.beta_fast > 0 && r.beta_slow > 0)) block->refuse("beta_fast", fmt::format("{} and beta_slow {} are not both positive", r.beta_fast, r.beta_slow));
      r.truncated = block->flag({"truncate"}, true);
      // Peng et al. 2023, equation 22; DeepSeek's form is a ratio of two, and scales the logits apart.
      const auto magnitude = [&](double weight) { return r.factor > 1 ? 0.1 * weight * std::log(r.factor) + 1 : 1.0; };
      const double one = block->number_or({"mscale"}, 0), all = block->number_or({"mscale_all_dim"}, 0);
      r.magnitude = block->number_or({"attention_factor"}, one > 0 && all > 0 ? magnitude(one) / magnitude(all) : magnitude(1));
      if (!(r.magnitude > 0)) block->refuse("attention_factor", fmt::format("{} is not positive", r.magnitude));
      if (all > 0) r.score_scale = magnitude(all) * magnitude(all);
    }
    if (kind == "llama3") {
      r.beta_fast = block->number_or({"high_freq_factor"}, 4), r.beta_slow = block->number_or({"low_freq_factor"}, 1);
      if (!(r.beta_slow > 0 && r.beta_fast > r.beta_slow))
        block->refuse("high_freq_factor", fmt::format("{} is not above a positive low_freq_factor {}", r.beta_fast, r.beta_slow));
    }
    if (!(r.factor > 0)) block->refuse("factor", fmt::format("{} is not positive", r.factor));
    const auto original = block->maybe_dim({"original_max_position_embeddings"}, 1);
    r.original_positions = original.value_or(text.maybe_dim({"original_max_position_embeddings", "max_position_embeddings"}, 1).value_or(0));
    if (r.original_positions == 0 && (kind == "yarn" || kind == "llama3" || kind == "longrope"))
      block->refuse("original_max_position_embeddings", "missing", "the context that the model was trained at, before " + kind);
    if (kind == "longrope") long_rope(*block, text, head_dim, r);
    if (!original && kind == "yarn") notes.push_back(fmt::format("yarn without original_max_position_embeddings: taken as {}", r.original_positions));
  }
  return r;
}

Activation activation(const ConfigReader& text) {
  const std::string name = text.text_or({"hidden_act", "hidden_activation", "mlp_hidden_act", "activation_function"}, "silu");
  const bool clamped = text.number_or({"swiglu_limit"}, 0) > 0;
  if (name == "silu" || name == "swish" || name == "swiglu") return clamped ? Activation::clamped_swiglu : Activation::silu;
  if (name == "swigluoai") return Activation::clamped_swiglu;
  if (name == "gelu" || name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast" || name == "quick_gelu") return Activation::gelu;
  if (name == "relu2") return Activation::relu2;
  if (name == "situ") return Activation::situ;
  text.refuse("hidden_act", "unknown activation " + shown(name), "known: silu, gelu, gelu_new, gelu_pytorch_tanh, relu2, situ, swigluoai");
}

GqaAttention gqa(const ConfigReader& text, ModelSpec& model) {
  GqaAttention a;
  a.heads = text.dim({"num_attention_heads", "n_heads", "n_head"});
  a.kv_heads = text.dim_or({"num_key_value_heads", "num_attention_groups", "num_query_groups"}, a.heads, 1);
  if (a.heads % a.kv_heads) text.refuse("num_key_value_heads", fmt::format("{} heads cannot share {} key-value heads", a.heads, a.kv_heads));
  if (const auto d = text.maybe_dim({"head_dim", "attention_head_dim"}, 1)) {
    a.head_dim = *d;
  } else {
    if (model.hidden % a.heads) text.refuse("num_attention_heads", fmt::format("hidden size {} does not divide by {} heads", model.hidden, a.heads), "give head_dim");
    a.head_dim = model.hidden / a.heads;
  }
  a.v_head_dim = text.dim_or({"v_head_dim"}, a.head_dim, 1);
  (void)text.width(a.heads, std::max(a.head_dim, a.v_head_dim), "num_attention_heads");
  a.rope = rope(text, a.head_dim, model.notes);
  return a;
}

MlaAttention mla(const ConfigReader& text, ModelSpec& model) {
  MlaAttention a;
  a.heads = text.dim({"num_attention_heads"});
  a.q_lora = text.dim_or({"q_lora_rank"}, 0);
  a.kv_lora = text.dim({"kv_lora_rank"});
  a.nope = text.dim({"qk_nope_head_dim"});
  a.rope_dim = text.dim_or({"qk_rope_head_dim"}, 0);
  a.v = text.dim({"v_head_dim"});
  (void)text.width(a.heads, a.nope + a.rope_dim + a.v, "num_attention_heads");
  a.rope = rope(text, a.rope_dim, model.notes);
  a.rope.rotary_dim = 0;
  a.rope.interleaved = text.flag({"rope_interleave"}, true);
  a.rope.enabled = a.rope_dim > 0 && !text.flag({"mla_use_nope"}, false);
  if (text.flag({"mla_use_output_gate", "gated_mla"}, false)) a.gate = OutputGate::projection;
  return a;
}

std::optional<DsaIndexer> indexer(const ConfigReader& text) {
  if (!text.has("index_topk")) return std::nullopt;
  DsaIndexer i{.heads = text.dim({"index_n_heads"}), .dim = text.dim({"index_head_dim"}), .topk = text.dim({"index_topk"}),
               .key_pool = text.dim_or({"index_kpool"}, 0), .shared = false};
  (void)text.width(i.heads, i.dim, "index_n_heads");
  return i;
}

bool has_experts(const ConfigReader& text) {
  const auto n = text.at_layer(expert_names, 0, 0, ImportLimits::experts);
  return n.value_or(0) > 0;
}

MoeFfn moe(const ConfigReader& text, std::int64_t hidden, std::int64_t layer) {
  MoeFfn f;
  const auto required = [&](ConfigReader::Names names, std::int64_t low, std::int64_t high) {
    const auto v = text.at_layer(names, layer, low, high);
    return v ? *v : text.integer(names, low, high);  // refuses with all the names
  };
  f.experts = required(expert_names, 1, ImportLimits::experts);
  f.top_k = required(top_k_names, 1, ImportLimits::experts);
  if (f.top_k > f.experts) text.refuse(*top_k_names.begin(), fmt::format("{} experts per token, but there are only {}", f.top_k, f.experts));
  f.intermediate = required({"moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size", "ffn_hidden_size"}, 1, ImportLimits::dimension);
  f.activation = activation(text);
  f.numbers = numbers(text);
  f.gated = f.activation != Activation::relu2;
  const std::string score = text.text_or({"scoring_func", "score_function", "moe_router_activation_func", "moe_router_activation"}, "softmax");
  if (score == "softmax") f.score = RouterScore::softmax;
  else if (score == "sigmoid") f.score = RouterScore::sigmoid;
  else if (score == "sqrtsoftplus") f.score = RouterScore::sqrt_softplus;
  else text.refuse("scoring_func", "unknown router score " + shown(score), "known: softmax, sigmoid, sqrtsoftplus");
  f.normalise = text.flag({"norm_topk_prob", "moe_renormalize", "norm_expert_weight"}, true);
  f.route_scale = text.number_or({"routed_scaling_factor", "moe_router_scaling_factor"}, 1.0);
  f.groups = text.dim_or({"n_group", "num_expert_group"}, 1, 1);
  f.top_groups = text.dim_or({"topk_group"}, f.groups, 1);
  if (f.experts % f.groups) text.refuse("n_group", fmt::format("{} experts do not divide into {} groups", f.experts, f.groups));
  if (f.top_groups > f.groups) text.refuse("topk_group", fmt::format("{} groups chosen of {}", f.top_groups, f.groups));
  if (f.top_k > f.experts / f.groups * f.top_groups) text.refuse("topk_group", fmt::format("{} experts per token, but {} groups hold {}", f.top_k, f.top_groups, f.experts / f.groups * f.top_groups));
  const std::int64_t shared = text.at_layer(shared_names, layer, 0, 1024).value_or(0);
  f.shared_intermediate = text.width(shared, f.intermediate, "moe_intermediate_size");
  const double weights = static_cast<double>(f.experts) * static_cast<double>(f.intermediate) * static_cast<double>(hidden);
  if (weights > 0x1p56) text.refuse("moe_intermediate_size", fmt::format("{} experts of {} x {} are more than 2^56 weights a layer", f.experts, f.intermediate, hidden));
  return f;
}

DenseFfn dense(const ConfigReader& text, ConfigReader::Names width) {
  DenseFfn f;
  f.intermediate = text.dim(width);
  f.activation = activation(text);
  f.numbers = numbers(text);
  f.gated = f.activation != Activation::relu2;
  f.bias = text.flag({"mlp_bias"}, false);
  return f;
}

std::vector<bool> moe_layers(const ConfigReader& text, std::int64_t layers, std::int64_t first_by_default) {
  std::vector<bool> out(static_cast<std::size_t>(layers), false);
  const auto words = text.words_per_layer({"mlp_layer_types"}, layers, {"dense", "sparse", "moe"});
  const std::int64_t first = text.dim_or({"first_k_dense_replace"}, first_by_default);
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto i = static_cast<std::size_t>(l);
    if (!words.empty()) {
      out[i] = words[i] != "dense";
    }
  }
  if (!words.empty()) return out;
  const auto frequencies = text.per_layer({"moe_layer_freq", "moe_layer_frequency"}, layers, 0, ImportLimits::layers);
  const bool scalar = !frequencies.empty() && text.is_scalar({"moe_layer_freq", "moe_layer_frequency"});
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto i = static_cast<std::size_t>(l);
    if (l < first) continue;
    if (frequencies.empty()) out[i] = true;
    else if (scalar) out[i] = frequencies[i] > 0 && l % frequencies[i] == 0;
    else out[i] = frequencies[i] > 0;
  }
  return out;
}

LayerSpec decoder_layer(Mixer attention, Mixer ffn, std::string attention_scope, std::string ffn_scope) {
  LayerSpec layer;
  layer.sublayers.push_back({.scope = std::move(attention_scope), .mixer = std::move(attention), .pre_norm = "input_layernorm"});
  layer.sublayers.push_back({.scope = std::move(ffn_scope), .mixer = std::move(ffn), .pre_norm = "post_attention_layernorm"});
  return layer;
}

void nest(ModelSpec& m, const std::string& prefix, bool head) {
  m.layer_prefix = prefix + m.layer_prefix;
  m.embedding_name = prefix + m.embedding_name;
  m.norm_name = prefix + m.norm_name;
  if (!m.residual_head_name.empty()) m.residual_head_name = prefix + m.residual_head_name;
  if (head) m.head_name = prefix + m.head_name;
}

void deepseek_mtp(ModelSpec& m, std::int64_t count, const LayerSpec& layer, bool copies) {
  m.mtp_prefix = m.layer_prefix;
  m.mtp_first = static_cast<std::int64_t>(m.layers.size());
  for (std::int64_t i = 0; i < count; ++i) {
    m.mtp_layers.push_back(layer);
    const std::string prefix = m.mtp_prefix + std::to_string(m.mtp_first + i) + ".";
    for (const char* name : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"}) m.mtp_extra.push_back({prefix + name, {m.hidden}});
    m.mtp_extra.push_back({prefix + "eh_proj.weight", {m.hidden, 2 * m.hidden}});
    if (copies)
      for (const char* name : {"embed_tokens.weight", "shared_head.head.weight"}) m.mtp_copies.push_back({prefix + name, {m.vocabulary, m.hidden}});
  }
}

void note_uncovered(ModelSpec& m) {
  if (!m.vision.empty()) m.uncovered.push_back("image tokens (the vision tower is counted and resident, not run)");
  if (!m.mtp_layers.empty()) m.uncovered.push_back("multi-token prediction (its layers are counted, not run)");
}

void rename_experts_w123(ModelSpec& m) {
  for (const auto& [ours, theirs] : {std::pair{"experts.*.gate_proj", "experts.*.w1"}, std::pair{"experts.*.up_proj", "experts.*.w3"}, std::pair{"experts.*.down_proj", "experts.*.w2"}})
    m.renames.emplace_back(ours, theirs);
}

}  // namespace moeplan::import
