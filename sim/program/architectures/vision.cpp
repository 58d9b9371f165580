/// Vision towers as tensor lists: MoonViT (Kimi-K2.5, K3), Qwen3-VL/3.5, Llama-4, GLM-5.3-Flash, Gemma-4, Step-3. They are counted and
/// resident; no operator reads them.

#include <fmt/format.h>

#include "sim/program/architectures/families.hpp"

namespace moeplan::import {
namespace {

/// Adds `<name>.weight` (and `.bias` of the first dimension).
struct Tower {
  std::vector<IdleTensor> tensors;
  void add(const std::string& name, std::vector<std::int64_t> shape, bool bias, std::int64_t count = 1) {
    const std::int64_t rows = shape.front();
    tensors.push_back({name + ".weight", std::move(shape), count});
    if (bias) tensors.push_back({name + ".bias", {rows}, count});
  }
};

}  // namespace

std::vector<IdleTensor> moonvit(const ConfigReader& v, std::int64_t text_hidden) {
  Tower t;
  const std::int64_t w = v.dim({"vt_hidden_size"}), inner = v.dim({"vt_intermediate_size"}), blocks = v.integer({"vt_num_hidden_layers"}, 1, ImportLimits::layers);
  const std::int64_t qkv = v.dim_or({"qkv_hidden_size"}, w, 1), patch = v.integer({"patch_size"}, 1, 1024);
  const auto merge = v.integers({"merge_kernel_size"}, 1, 64);
  const std::int64_t merged = merge.size() == 2 ? v.width(w, merge[0] * merge[1], "merge_kernel_size") : 4 * w;
  const bool rms = v.text_or({"norm_type"}, "layernorm") == "rmsnorm", attention_bias = v.flag({"attn_bias"}, true), linear_bias = v.flag({"linear_bias"}, true);
  const std::string e = "vision_tower.encoder.", b = e + "blocks.*.";
  t.add("vision_tower.patch_embed.proj", {w, 3, patch, patch}, v.flag({"patch_embed_proj_bias"}, true));
  t.add("vision_tower.patch_embed.pos_emb", {v.integer({"init_pos_emb_height"}, 1, 4096), v.integer({"init_pos_emb_width"}, 1, 4096), w}, false);
  t.add(b + "norm0", {w}, !rms, blocks);
  t.add(b + "norm1", {w}, !rms, blocks);
  t.add(b + "wqkv", {3 * qkv, w}, attention_bias, blocks);
  t.add(b + "wo", {w, qkv}, attention_bias, blocks);
  t.add(b + "mlp.fc0", {inner, w}, linear_bias, blocks);
  t.add(b + "mlp.fc1", {w, inner}, linear_bias, blocks);
  t.add(e + "final_layernorm", {w}, !rms);
  const bool v2 = v.text_or({"mm_projector_type"}, "patchmerger") == "patchmergerv2";
  if (!v2) t.add("mm_projector.pre_norm", {w}, true);
  t.add("mm_projector.proj.0", {merged, merged}, !v2);
  t.add("mm_projector.proj.2", {text_hidden, merged}, !v2);
  if (v2) t.add("mm_projector.post_norm", {text_hidden}, false);
  return std::move(t.tensors);
}

std::vector<IdleTensor> qwen_vision(const ConfigReader& v) {
  Tower t;
  const std::int64_t w = v.dim({"hidden_size"}), inner = v.dim({"intermediate_size"}), blocks = v.integer({"depth"}, 1, ImportLimits::layers);
  const std::int64_t out = v.dim({"out_hidden_size"}), patch = v.integer({"patch_size"}, 1, 1024), merge = v.integer_or({"spatial_merge_size"}, 2, 1, 64);
  const std::int64_t merged = v.width(w, merge * merge, "spatial_merge_size");
  const std::string p = "model.visual.", b = p + "blocks.*.";
  t.add(p + "patch_embed.proj", {w, v.integer_or({"in_channels"}, 3, 1, 64), v.integer_or({"temporal_patch_size"}, 2, 1, 64), patch, patch}, true);
  t.add(p + "pos_embed", {v.dim({"num_position_embeddings"}), w}, false);
  t.add(b + "norm1", {w}, true, blocks);
  t.add(b + "norm2", {w}, true, blocks);
  t.add(b + "attn.qkv", {3 * w, w}, true, blocks);
  t.add(b + "attn.proj", {w, w}, true, blocks);
  t.add(b + "mlp.linear_fc1", {inner, w}, true, blocks);
  t.add(b + "mlp.linear_fc2", {w, inner}, true, blocks);
  const auto merger = [&](const std::string& name, std::int64_t norm, std::int64_t count) {
    t.add(name + ".norm", {norm}, true, count);
    t.add(name + ".linear_fc1", {merged, merged}, true, count);
    t.add(name + ".linear_fc2", {out, merged}, true, count);
  };
  merger(p + "merger", w, 1);
  const auto deep = static_cast<std::int64_t>(v.integers({"deepstack_visual_indexes"}, 0, ImportLimits::layers).size());
  if (deep > 0) merger(p + "deepstack_merger_list.*", merged, deep);
  return std::move(t.tensors);
}

std::vector<IdleTensor> llama4_vision(const ConfigReader& v, std::int64_t text_hidden) {
  Tower t;
  const std::int64_t w = v.dim({"hidden_size"}), inner = v.dim({"intermediate_size"}), blocks = v.integer({"num_hidden_layers"}, 1, ImportLimits::layers);
  const std::int64_t patch = v.integer({"patch_size"}, 1, 1024), side = v.integer({"image_size"}, 1, 1 << 16) / patch;
  const std::int64_t projector = v.dim({"projector_output_dim"}), input = v.dim({"projector_input_dim"});
  const std::string p = "vision_model.", b = p + "model.layers.*.";
  t.add(p + "patch_embedding.linear", {w, v.integer_or({"num_channels"}, 3, 1, 64) * patch * patch}, false);
  t.tensors.push_back({p + "class_embedding", {w}});
  t.tensors.push_back({p + "positional_embedding_vlm", {side * side + 1, w}});
  for (const char* name : {"layernorm_pre", "layernorm_post"}) t.add(p + name, {w}, true);
  for (const char* name : {"input_layernorm", "post_attention_layernorm"}) t.add(b + name, {w}, true, blocks);
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}) t.add(b + name, {w, w}, true, blocks);
  t.add(b + "mlp.fc1", {inner, w}, true, blocks);
  t.add(b + "mlp.fc2", {w, inner}, true, blocks);
  t.add(p + "vision_adapter.mlp.fc1", {input, inner}, false);
  t.add(p + "vision_adapter.mlp.fc2", {projector, input}, false);
  t.add("multi_modal_projector.linear_1", {text_hidden, v.dim_or({"vision_output_dim"}, projector, 1)}, false);
  return std::move(t.tensors);
}

/// transformers' glm5_next: gated, clamped MLP, per-head norms of q and k, a convolution that merges patches, a gated merger.
std::vector<IdleTensor> glm_vision(const ConfigReader& v) {
  Tower t;
  const std::int64_t w = v.dim({"hidden_size"}), inner = v.dim({"intermediate_size"}), blocks = v.integer({"depth"}, 1, ImportLimits::layers);
  const std::int64_t heads = v.dim({"num_heads"}), out = v.dim({"out_hidden_size"}), wide = v.dim({"projection_intermediate_size"});
  const std::int64_t patch = v.integer({"patch_size"}, 1, 1024), merge = v.integer_or({"spatial_merge_size"}, 2, 1, 64);
  if (w % heads) v.refuse("num_heads", fmt::format("{} does not divide the width {}", heads, w));
  const bool bias = v.flag({"attention_bias"}, true);
  const std::string p = "model.visual.", b = p + "blocks.*.";
  t.add(p + "patch_embed.proj", {w, v.integer_or({"in_channels"}, 3, 1, 64), v.integer_or({"temporal_patch_size"}, 2, 1, 64), patch, patch}, true);
  for (const char* name : {"norm1", "norm2"}) t.add(b + name, {w}, false, blocks);
  t.add(b + "attn.qkv", {3 * w, w}, bias, blocks);
  t.add(b + "attn.proj", {w, w}, bias, blocks);
  for (const char* name : {"attn.q_norm", "attn.k_norm"}) t.add(b + name, {w / heads}, false, blocks);
  for (const char* name : {"mlp.gate_proj", "mlp.up_proj"}) t.add(b + name, {inner, w}, bias, blocks);
  t.add(b + "mlp.down_proj", {w, inner}, bias, blocks);
  t.add(p + "post_layernorm", {w}, false);
  t.add(p + "downsample", {out, w, merge, merge}, true);
  t.add(p + "merger.proj", {out, out}, false);
  t.add(p + "merger.post_projection_norm", {out}, true);
  for (const char* name : {"merger.gate_proj", "merger.up_proj"}) t.add(p + name, {wide, out}, false);
  t.add(p + "merger.down_proj", {out, wide}, false);
  return std::move(t.tensors);
}

/// transformers' gemma4: four norms a layer, per-head norms of q and k, a table of positions for each axis.
std::vector<IdleTensor> gemma4_vision(const ConfigReader& v, std::int64_t text_hidden) {
  Tower t;
  const std::int64_t w = v.dim({"hidden_size"}), inner = v.dim({"intermediate_size"}), blocks = v.integer({"num_hidden_layers"}, 1, ImportLimits::layers);
  const std::int64_t heads = v.dim({"num_attention_heads"}), kv_heads = v.dim_or({"num_key_value_heads"}, heads, 1), d = v.dim({"head_dim"}), patch = v.integer({"patch_size"}, 1, 1024);
  const std::int64_t q = v.width(heads, d, "num_attention_heads"), kv = v.width(kv_heads, d, "num_key_value_heads");
  const std::string p = "model.vision_tower.", b = p + "encoder.layers.*.";
  t.add(p + "patch_embedder.input_proj", {w, 3 * patch * patch}, false);
  t.tensors.push_back({p + "patch_embedder.position_embedding_table", {2, v.dim({"position_embedding_size"}), w}});
  for (const char* name : {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}) t.add(b + name, {w}, false, blocks);
  const auto clipped = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    t.add(b + name + ".linear", {out, in}, false, blocks);
    for (const char* end : {".input_min", ".input_max", ".output_min", ".output_max"})
      if (v.flag({"use_clipped_linears"}, false)) t.tensors.push_back({b + name + end, {1}, blocks});
  };
  clipped("self_attn.q_proj", q, w);
  for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"}) clipped(name, kv, w);
  clipped("self_attn.o_proj", w, q);
  for (const char* name : {"self_attn.q_norm", "self_attn.k_norm"}) t.add(b + name, {d}, false, blocks);
  for (const char* name : {"mlp.gate_proj", "mlp.up_proj"}) clipped(name, inner, w);
  clipped("mlp.down_proj", w, inner);
  for (const char* name : {"std_bias", "std_scale"})
    if (v.flag({"standardize"}, false)) t.tensors.push_back({p + name, {w}});
  t.add("model.embed_vision.embedding_projection", {text_hidden, w}, false);
  return std::move(t.tensors);
}

/// The public serving code of step3_vl: norms after the sublayers, a class token, two convolutions that merge patches.
std::vector<IdleTensor> step3_vision(const ConfigReader& root, const ConfigReader& v, std::int64_t text_hidden) {
  Tower t;
  const std::int64_t w = v.dim({"hidden_size"}), inner = v.dim({"intermediate_size"}), blocks = v.integer({"num_hidden_layers"}, 1, ImportLimits::layers);
  const std::int64_t patch = v.integer({"patch_size"}, 1, 1024), side = v.integer({"image_size"}, 1, 1 << 16) / patch, out = v.dim({"output_hidden_size"});
  const std::string p = "vision_model.", b = p + "transformer.layers.*.";
  t.tensors.push_back({p + "embeddings.class_embedding", {1, w}});
  t.add(p + "embeddings.patch_embedding", {w, v.integer_or({"num_channels"}, 3, 1, 64), patch, patch}, true);
  t.add(p + "embeddings.position_embedding", {side * side + 1, w}, false);
  t.add(b + "self_attn.qkv_proj", {3 * w, w}, true, blocks);
  t.add(b + "self_attn.out_proj", {w, w}, true, blocks);
  for (const char* name : {"layer_norm1", "layer_norm2"}) t.add(b + name, {w}, true, blocks);
  t.add(b + "mlp.fc1", {inner, w}, true, blocks);
  t.add(b + "mlp.fc2", {w, inner}, true, blocks);
  t.add("vit_downsampler", {out, w, 2, 2}, true);
  t.add("vit_downsampler2", {2 * out, out, 3, 3}, true);
  t.add("vit_large_projector", {text_hidden, 2 * out}, root.flag({"projector_bias"}, true));
  return std::move(t.tensors);
}

}  // namespace moeplan::import
