#pragma once
/// Pieces that several families import the same way. All of them take the reader of the text config.

#include "core/spec/model.hpp"
#include "sim/program/architectures/config_reader.hpp"

namespace moeplan::import {

/// Names, hidden size, vocabulary, tied head, stored types. `root` is the whole document, `text` the language part of it.
[[nodiscard]] ModelSpec start(const ConfigReader& root, const ConfigReader& text, std::string family);

/// quantization_config and dtype of either level.
[[nodiscard]] StoredTypes stored_types(const ConfigReader& root, const ConfigReader& text, std::vector<std::string>& notes);

/// rope_theta, rope_scaling or transformers-5 rope_parameters. Rejects `type` and `rope_type` that disagree.
[[nodiscard]] Rope rope(const ConfigReader& text, std::int64_t head_dim, std::vector<std::string>& notes);

[[nodiscard]] Activation activation(const ConfigReader& text);
/// MHA or GQA: kv heads default to heads, head size to hidden / heads.
[[nodiscard]] GqaAttention gqa(const ConfigReader& text, ModelSpec& model);
[[nodiscard]] MlaAttention mla(const ConfigReader& text, ModelSpec& model);
/// Flat `index_*` fields (DeepSeek-V3.2) or those of `section`; nothing without index_topk.
[[nodiscard]] std::optional<DsaIndexer> indexer(const ConfigReader& text);

/// Whether any field that counts experts is above zero: then the feed-forward is never silently dense.
[[nodiscard]] bool has_experts(const ConfigReader& text);
/// Routed and shared experts of one layer (fields may be lists).
[[nodiscard]] MoeFfn moe(const ConfigReader& text, std::int64_t hidden, std::int64_t layer = 0);
[[nodiscard]] DenseFfn dense(const ConfigReader& text, ConfigReader::Names width = {"intermediate_size", "ffn_hidden_size"});

/// first_k_dense_replace with moe_layer_freq (number or 0/1 list), or mlp_layer_types.
[[nodiscard]] std::vector<bool> moe_layers(const ConfigReader& text, std::int64_t layers, std::int64_t first_by_default = 0);

/// Pre-norm decoder layer: input_layernorm, attention, post_attention_layernorm, feed-forward.
[[nodiscard]] LayerSpec decoder_layer(Mixer attention, Mixer ffn, std::string attention_scope = "self_attn", std::string ffn_scope = "mlp");

/// Moves all text tensors below `prefix` ("language_model."); the head too if `head`.
void nest(ModelSpec& model, const std::string& prefix, bool head);

/// DeepSeek's MTP layers behind the last one: a copy of `layer` each, enorm, hnorm, eh_proj, shared_head.norm; with `copies` also
/// embedding and head stored again.
void deepseek_mtp(ModelSpec& model, std::int64_t count, const LayerSpec& layer, bool copies);

/// Notes that image tokens are not run, and that MTP layers are not.
void note_uncovered(ModelSpec& model);

/// mlp.experts.*.{gate,up,down}_proj are called w1, w3, w2 in the file.
void rename_experts_w123(ModelSpec& model);

}  // namespace moeplan::import
