/// How a checkpoint stores its weights: quantization_config of the common producers.

#include "sim/program/architectures/common.hpp"

namespace moeplan::import {
namespace {

bool mentions(const std::vector<std::string>& patterns, const char* a, const char* b = "") {
  for (const auto& p : patterns)
    if (p.find(a) != std::string::npos && p.find(b) != std::string::npos) return true;
  return false;
}

/// The type that a compressed-tensors or ModelOpt block gives its targets; nothing if unknown.
std::optional<DType> packed_type(const ConfigReader& q) {
  std::string format = q.text_or({"format"}, "");
  if (const auto groups = q.maybe_section("config_groups"))
    for (const auto& key : groups->keys())
      if (const auto group = groups->maybe_section(key.c_str()); group && group->has("format")) format = group->text_or({"format"}, format);
  if (format == "mxfp4-pack-quantized") return DType::mxfp4;
  if (format == "nvfp4-pack-quantized") return DType::nvfp4;
  if (format == "pack-quantized") return DType::int4;
  if (format == "int-quantized") return DType::int8;
  if (format == "float-quantized") return DType::fp8;
  const std::string algorithm = q.text_or({"quant_algo"}, "");
  if (algorithm.find("NVFP4") != std::string::npos) return DType::nvfp4;
  if (algorithm.find("FP8") != std::string::npos) return DType::fp8;
  return std::nullopt;
}

}  // namespace

StoredTypes stored_types(const ConfigReader& root, const ConfigReader& text, std::vector<std::string>& notes) {
  StoredTypes s;
  const std::string base = text.text_or({"dtype", "torch_dtype"}, root.text_or({"dtype", "torch_dtype"}, "bfloat16"));
  if (base == "float16" || base == "torch.float16") s.base = DType::f16;
  else if (base == "float32" || base == "torch.float32") s.base = DType::f32;
  else if (base != "bfloat16" && base != "torch.bfloat16" && base != "auto") text.refuse("dtype", "unknown type " + shown(base), "known: bfloat16, float16, float32");
  s.experts = s.attention = s.dense = s.shared = s.base;

  const auto inner = text.maybe_section("quantization_config"), outer = root.maybe_section("quantization_config");
  if (!inner && !outer) return s;
  const ConfigReader* block = inner ? &*inner : &*outer;
  const std::string method = block->text_or({"quant_method"}, "");
  std::optional<DType> type;
  if (method == "fp8") {
    type = DType::fp8;
    s.layout = PackedLayout::scale_inv;
  } else if (method == "mxfp4") {
    s.experts = DType::mxfp4;  // gpt-oss quantises its experts only
    s.layout = PackedLayout::blocks_scales;
    return s;
  } else if (method == "compressed-tensors" || method == "modelopt") {
    type = packed_type(*block);
    s.layout = PackedLayout::compressed_tensors;
  } else if (method == "bitsandbytes") {
    type = block->flag({"load_in_8bit"}, false) ? DType::int8 : DType::nf4;
    s.layout = PackedLayout::compressed_tensors;
  } else if (method == "gptq" || method == "awq") {
    type = block->integer({"bits", "w_bit"}, 2, 8) == 8 ? DType::int8 : DType::int4;
    s.layout = PackedLayout::compressed_tensors;
  }
  if (!type) {
    notes.push_back("quantization_config of a kind that is not known (quant_method " + shown(method) + "): stored sizes are those of the unquantised weights");
    s.layout = PackedLayout::plain;
    return s;
  }
  const auto ignored = block->texts({"ignore", "modules_to_not_convert", "exclude_modules"});
  s.experts = *type;
  if (!mentions(ignored, "self_attn") && !mentions(ignored, "attention")) s.attention = *type;
  if (!mentions(ignored, "mlp", "_proj")) s.dense = *type;
  if (!mentions(ignored, "shared_expert")) s.shared = *type;
  return s;
}

}  // namespace moeplan::import
