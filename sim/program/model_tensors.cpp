#include "sim/program/model_tensors.hpp"

#include <fmt/format.h>

#include <map>

#include "core/checked.hpp"
#include "sim/program/architectures/compose.hpp"

namespace moeplan {
namespace {

BlockContext whole() {
  BlockContext c;
  c.tokens = c.sequence_length = 8192;
  c.workload.attention = c.workload.dense = Tuning{};
  return c;
}

/// Cheap key of a layer, so that equal ones are found without comparing all pairs.
std::size_t fingerprint(const LayerSpec& layer) {
  std::size_t h = layer.stores_block ? 1 : 0;
  const auto mix = [&](std::int64_t v) { h = h * 1'000'003 + static_cast<std::size_t>(v); };
  struct Key {
    std::int64_t operator()(const GqaAttention& a) const { return a.heads * 31 + a.window.value_or(0) + a.index_topk; }
    std::int64_t operator()(const MlaAttention& a) const { return a.indexer ? (a.indexer->shared ? 2 : 1) : 0; }
    std::int64_t operator()(const CompressedAttention& a) const { return a.ratio; }
    std::int64_t operator()(const DenseFfn& f) const { return f.intermediate; }
    std::int64_t operator()(const MoeFfn& f) const { return f.experts * 31 + f.top_k * 7 + f.intermediate + f.shared_intermediate * 3; }
    std::int64_t operator()(const KdaAttention& a) const { return a.heads; }
    std::int64_t operator()(const GdnAttention& a) const { return a.v_heads; }
    std::int64_t operator()(const Mamba2Mixer& a) const { return a.heads; }
    std::int64_t operator()(const Mamba1Mixer& a) const { return a.inner; }
    std::int64_t operator()(const LightningAttention& a) const { return a.heads; }
  };
  for (const Sublayer& s : layer.sublayers) {
    mix(static_cast<std::int64_t>(s.mixer.index()));
    mix(std::visit(Key{}, s.mixer));
  }
  return h;
}

const char* word(DType t) {
  switch (t) {
    case DType::f32: return "F32";
    case DType::f16: return "F16";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::u8: return "U8";
    default: return "BF16";
  }
}

std::int64_t width(DType t) {
  switch (t) {
    case DType::f32: case DType::i32: return 4;
    case DType::i64: return 8;
    case DType::u8: return 1;
    default: return 2;
  }
}

std::int64_t product(const std::vector<std::int64_t>& shape, const char* where) {
  std::int64_t n = 1;
  for (const auto d : shape) n = checked_mul(n, d, where);
  return n;
}

std::string stem(const std::string& name) { return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name; }

bool integer_type(DType t) { return t == DType::i32 || t == DType::i64; }

/// The counter of a weight's category.
std::int64_t ParameterCounts::*category(const Weight& w, const LayerSpec* layer) {
  switch (w.cls) {
    case WeightClass::attention: return &ParameterCounts::attention;
    case WeightClass::dense: return &ParameterCounts::dense_ffn;
    case WeightClass::shared: return &ParameterCounts::shared_experts;
    case WeightClass::experts: return &ParameterCounts::routed_experts;
    case WeightClass::router: return &ParameterCounts::router;
    case WeightClass::embedding: return &ParameterCounts::embedding;
    case WeightClass::head: return &ParameterCounts::lm_head;
    case WeightClass::norm: return &ParameterCounts::norms;
    case WeightClass::vision: return &ParameterCounts::vision;
    case WeightClass::mtp: return &ParameterCounts::mtp;
    case WeightClass::latent: return &ParameterCounts::other;
    case WeightClass::other: break;
  }
  // Small weights of a mixer of tokens (decays, convolutions, indexers) belong to attention.
  if (layer)
    for (const Sublayer& s : layer->sublayers)
      if (!std::holds_alternative<DenseFfn>(s.mixer) && !std::holds_alternative<MoeFfn>(s.mixer) && w.name.starts_with(s.scope + ".")) return &ParameterCounts::attention;
  return &ParameterCounts::other;
}

}  // namespace

ModelBlocks compose_model(const ModelSpec& m) {
  ModelBlocks out;
  const auto layers = static_cast<std::int64_t>(m.layers.size());
  {
    Builder b("embedding", whole());
    Stream stream;
    compose_embedding(b, m, stream);
    stream_outputs(b, stream);
    out.embedding = b.take();
  }
  std::map<std::size_t, std::vector<std::size_t>> buckets;
  for (std::int64_t l = 0; l < layers; ++l) {
    const LayerSpec& spec = m.layers[static_cast<std::size_t>(l)];
    auto& bucket = buckets[fingerprint(spec)];
    std::size_t kind = out.kinds.size();
    for (const std::size_t k : bucket)
      if (m.layers[out.example[k]] == spec) kind = k;
    if (kind == out.kinds.size()) {
      Builder b(layer_kind(m, l), whole());
      Stream stream = stream_inputs(b, m, l);
      compose_layer(b, m, spec, stream);
      stream_outputs(b, stream);
      out.kinds.push_back(b.take());
      out.example.push_back(static_cast<std::size_t>(l));
      bucket.push_back(kind);
    }
    out.kind_of.push_back(kind);
  }
  {
    Builder b("head", whole());
    Stream stream = stream_inputs(b, m, layers);
    compose_head(b, m, stream, 1);
    out.head = b.take();
  }
  Builder b("idle", whole());
  compose_idle(b, m);
  out.idle = b.take();
  return out;
}

namespace {

/// Calls `f(weight, source, layer, name)` for each source of each weight; `layer` is -1 outside the layers.
void for_each_source(const ModelSpec& m, const ModelBlocks& blocks, const std::function<void(const Weight&, const TensorSource&, std::int64_t, std::string)>& f) {
  const auto plain = [&](const Graph& g) {
    for (const Weight& w : g.weights)
      for (const TensorSource& s : w.sources) f(w, s, -1, s.name);
  };
  plain(blocks.embedding);
  for (std::size_t l = 0; l < blocks.kind_of.size(); ++l)
    for (const Weight& w : blocks.kinds[blocks.kind_of[l]].weights)
      for (const TensorSource& s : w.sources) f(w, s, static_cast<std::int64_t>(l), checkpoint_name(m, m.layer_prefix, static_cast<std::int64_t>(l), s.name));
  plain(blocks.head);
  plain(blocks.idle);
}

/// MTP layers may hold what the main layers hold; copies of embedding and head are told by their list.
Scope scope_of(const ModelSpec& m, const Weight& w, const TensorSource& s) {
  if (integer_type(s.dtype)) return Scope::tables;
  if (w.cls == WeightClass::vision) return Scope::vision;
  if (w.cls != WeightClass::mtp) return Scope::main;
  for (const IdleTensor& t : m.mtp_copies)
    if (t.name == s.name) return Scope::mtp_copies;
  return Scope::mtp;
}

}  // namespace

std::vector<ModelTensor> model_tensors(const ModelSpec& m, const ModelBlocks& blocks) {
  std::vector<ModelTensor> out;
  for_each_source(m, blocks, [&](const Weight& w, const TensorSource& s, std::int64_t layer, std::string name) {
    out.push_back({.name = std::move(name), .shape = s.shape, .count = s.count, .dtype = s.dtype, .padding = s.padding, .scope = scope_of(m, w, s), .layer = layer});
  });
  return out;
}

std::vector<FileTensor> file_tensors(const ModelTensor& t, PackedLayout layout) {
  const char* where = t.name.c_str();
  const auto one = [&](std::string name, std::vector<std::int64_t> shape, const char* dtype, std::int64_t bytes_each) {
    const std::int64_t n = product(shape, where);
    return FileTensor{.name = std::move(name), .shape = std::move(shape), .count = t.count, .dtype = dtype, .bytes = {checked_mul(n, bytes_each, where)}};
  };
  const bool quantised = t.dtype == DType::fp8 || t.dtype == DType::mxfp4 || t.dtype == DType::nvfp4 || t.dtype == DType::int4 || t.dtype == DType::int8 || t.dtype == DType::nf4;
  if (!quantised || t.shape.size() < 2) return {one(t.name, t.shape, word(t.dtype), width(t.dtype))};
  std::vector<std::int64_t> outer(t.shape.begin(), t.shape.end() - 1);
  const std::int64_t in = t.shape.back();
  const auto with = [&](std::int64_t last) {
    auto shape = outer;
    shape.push_back(last);
    return shape;
  };
  if (layout == PackedLayout::blocks_scales && t.shape.size() == 3) {  // gpt-oss: [E, in, out] becomes [E, out, in / 32, 16]
    const std::int64_t blocks = ceil_div(t.shape[1], 32);
    return {one(t.name + "_blocks", {t.shape[0], in, blocks, 16}, "U8", 1), one(t.name + "_scales", {t.shape[0], in, blocks}, "U8", 1)};
  }
  const std::string base = stem(t.name);
  switch (t.dtype) {
    case DType::fp8: {
      auto blocks = with(ceil_div(in, 128));
      blocks[blocks.size() - 2] = ceil_div(blocks[blocks.size() - 2], 128);
      if (layout == PackedLayout::scale) return {one(t.name, t.shape, "F8_E4M3", 1), one(base + ".scale", blocks, "F8_E8M0", 1)};
      if (layout == PackedLayout::compressed_tensors) return {one(t.name, t.shape, "F8_E4M3", 1), one(base + ".weight_scale", with(1), "BF16", 2)};
      return {one(t.name, t.shape, "F8_E4M3", 1), one(base + ".weight_scale_inv", blocks, "F32", 4)};
    }
    case DType::mxfp4:
      if (layout == PackedLayout::scale) return {one(t.name, with(ceil_div(in, 2)), "I8", 1), one(base + ".scale", with(ceil_div(in, 32)), "F8_E8M0", 1)};
      return {one(base + ".weight_packed", with(ceil_div(in, 2)), "U8", 1), one(base + ".weight_scale", with(ceil_div(in, 32)), "U8", 1)};
    case DType::nvfp4:
      return {one(base + ".weight_packed", with(ceil_div(in, 2)), "U8", 1), one(base + ".weight_scale", with(ceil_div(in, 16)), "F8_E4M3", 1), one(base + ".weight_global_scale", {1}, "F32", 4)};
    case DType::int8: return {one(t.name, t.shape, "I8", 1), one(base + ".weight_scale", with(1), "BF16", 2)};
    default:
      return {one(base + ".weight_packed", with(ceil_div(in, 8)), "I32", 4), one(base + ".weight_scale", with(ceil_div(in, 32)), "BF16", 2), one(base + ".weight_shape", {static_cast<std::int64_t>(t.shape.size())}, "I32", 4)};
  }
}

ParameterCounts count_parameters(const ModelSpec& m, const ModelBlocks& blocks) {
  ParameterCounts c;
  const std::string model = m.name.empty() ? "model" : m.name;
  const char* where = model.c_str();
  const auto to = [&](std::int64_t& counter, std::int64_t n) { counter = checked_add(counter, n, where); };
  const auto count = [&](const Weight& w, const LayerSpec* layer, std::int64_t times) {
    for (const TensorSource& s : w.sources) {
      const std::int64_t elements = checked_mul(checked_mul(product(s.shape, where) - s.padding, s.count, where), times, where);
      const Scope scope = scope_of(m, w, s);
      if (scope != Scope::mtp_copies)
        for (const FileTensor& f : file_tensors({.name = s.name, .shape = s.shape, .count = s.count, .dtype = s.dtype}, m.stored.layout)) {
          to(c.stored_bytes, checked_mul(checked_mul(f.bytes.value, f.count, where), times, where));
          to(c.stored_tensors, checked_mul(f.count, times, where));
        }
      if (scope == Scope::mtp_copies) { to(c.mtp_copies, elements); continue; }
      if (scope == Scope::tables) { to(c.tables, elements); continue; }
      to(c.*category(w, layer), elements);
      if (scope != Scope::main) continue;
      to(c.main, elements);
      std::int64_t active = elements;
      if (w.cls == WeightClass::experts && layer)
        for (const Sublayer& sub : layer->sublayers)
          if (const auto* f = std::get_if<MoeFfn>(&sub.mixer)) active = elements / f->experts * f->top_k;
      to(c.activated, active);
    }
  };
  for (const Weight& w : blocks.embedding.weights) {
    count(w, nullptr, 1);
    if (w.name == m.embedding_name) c.input_embedding = w.full_shape.elements();
  }
  std::vector<std::int64_t> times(blocks.kinds.size(), 0);
  for (const std::size_t k : blocks.kind_of) ++times[k];
  for (std::size_t k = 0; k < blocks.kinds.size(); ++k)
    for (const Weight& w : blocks.kinds[k].weights) count(w, &m.layers[blocks.example[k]], times[k]);
  for (const Weight& w : blocks.head.weights) count(w, nullptr, 1);
  for (const Weight& w : blocks.idle.weights) count(w, nullptr, 1);
  return c;
}

}  // namespace moeplan
