#include "sim/program/architectures/compose.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/program/architectures/compose_parts.hpp"

namespace moeplan {
namespace {

using namespace compose;

bool hyper(const ModelSpec& m) { return m.residual == ResidualKind::hyper || m.residual == ResidualKind::input_hyper; }

op::HyperPre hyper_call(const Builder& b, const ModelSpec& m, ValueId x, op::HyperForm form) {
  return {.tokens = rows(b, x), .hidden = m.hidden, .streams = m.streams, .form = form, .training = b.training(WeightClass::other)};
}

/// Names of the hyper-connection's weights: `<prefix>fn`, `<prefix>base`, `<prefix>scale`.
std::vector<WeightId> hyper_weights(Builder& b, const ModelSpec& m, const op::HyperPre& call, const std::string& prefix) {
  std::vector<WeightId> w{small(b, prefix + "fn", {call.coefficients(), m.streams * m.hidden})};
  if (!call.affine) return w;
  w.push_back(small(b, prefix + "base", {call.coefficients()}));
  w.push_back(small(b, prefix + "scale", {call.form == op::HyperForm::mhc ? 3 : call.form == op::HyperForm::input ? 2 : 1}));
  return w;
}

ValueId attention_residual(Builder& b, const ModelSpec& m, ValueId sum, const std::vector<ValueId>& blocks, const std::string& prefix) {
  const WeightId norm = small(b, prefix + "norm.weight", {m.hidden}, WeightSplit::none, m.stored.base), proj = small(b, prefix + "proj.weight", {1, m.hidden}, WeightSplit::none, m.stored.base);
  const auto count = std::min<std::size_t>(blocks.size(), op::AttentionResidual::most_blocks);
  std::vector<ValueId> values{sum};
  values.insert(values.end(), blocks.end() - static_cast<std::ptrdiff_t>(count), blocks.end());
  const op::AttentionResidual call{.tokens = rows(b, sum), .hidden = m.hidden, .blocks = static_cast<std::int64_t>(count), .training = b.training(WeightClass::other)};
  return b.call(call, values, std::vector<WeightId>{norm, proj}).front();
}

bool reads_tokens_apart(const Mixer& mixer) { return std::holds_alternative<MoeFfn>(mixer); }

/// Output of a mixer in its scope, for an input that is the tensor rank's share of the tokens.
ValueId run_mixer(Builder& b, const ModelSpec& m, const Sublayer& s, ValueId normed, Stream& stream) {
  const std::string outer = b.scope(s.scope.empty() ? "" : s.scope + ".");
  const bool apart = reads_tokens_apart(s.mixer);
  const ValueId in = apart ? normed : b.enter_tensor_region(normed);
  ValueId y = std::visit([&](const auto& mixer) { return mix(b, m, mixer, in, stream); }, s.mixer);
  if (!apart) y = b.leave_tensor_region(y);
  b.scope(outer);
  return y;
}

std::int64_t stored_before(const ModelSpec& m, std::int64_t layer) {
  std::int64_t n = 0;
  for (std::int64_t l = 0; l < layer; ++l) n += m.layers[static_cast<std::size_t>(l)].stores_block ? 1 : 0;
  return std::min<std::int64_t>(n, op::AttentionResidual::most_blocks);
}

const DsaIndexer* shared_indexer(const LayerSpec& layer) {
  for (const Sublayer& s : layer.sublayers)
    if (const auto* a = std::get_if<MlaAttention>(&s.mixer); a && a->indexer && a->indexer->shared) return &*a->indexer;
  return nullptr;
}

bool hash_routed(const LayerSpec& layer) {
  return std::any_of(layer.sublayers.begin(), layer.sublayers.end(), [](const Sublayer& s) {
    const auto* f = std::get_if<MoeFfn>(&s.mixer);
    return f && f->hash_routed;
  });
}

}  // namespace

void compose_embedding(Builder& b, const ModelSpec& m, Stream& stream) {
  const std::int64_t t = b.tokens(), all = b.context().tokens, vocabulary = local(b, m.vocabulary);
  stream.token_ids = b.input("token_ids", {all}, DType::i32, false);
  const WeightId w = b.weight(WeightClass::embedding, m.embedding_name, {m.vocabulary, m.hidden}, WeightSplit::column, m.stored.base);
  std::vector<WeightId> weights{w};
  for (const WeightId a : b.adapters(w, m.embedding_name, m.vocabulary, m.hidden, WeightSplit::row)) weights.push_back(a);
  const op::Embedding call{.tokens = all, .vocabulary = vocabulary, .hidden = m.hidden, .training = b.training(WeightClass::embedding), .lora_rank = b.lora_rank(WeightClass::embedding),
                           .lora_scale = lora_scale(b, WeightClass::embedding)};
  stream.x = b.leave_tensor_region(b.call(call, std::array{stream.token_ids}, weights).front());
  if (m.learned_positions > 0) {
    const ValueId positions = b.input("positions", {t}, DType::i32, false);
    const WeightId p = b.weight(WeightClass::embedding, m.positions_name, {m.learned_positions, m.hidden}, WeightSplit::none, m.stored.base);
    std::vector<WeightId> position_weights{p};
    for (const WeightId a : b.adapters(p, m.positions_name, m.learned_positions, m.hidden)) position_weights.push_back(a);
    op::Embedding second = call;
    second.tokens = t;
    second.vocabulary = m.learned_positions;
    stream.x = add(b, stream.x, b.call(second, std::array{positions}, position_weights).front());
  }
  if (hyper(m)) stream.x = b.call(op::HyperExpand{.tokens = t, .hidden = m.hidden, .streams = m.streams}, {stream.x}).front();
}

void compose_layer(Builder& b, const ModelSpec& m, const LayerSpec& layer, Stream& stream) {
  const ValueId layer_input = stream.x;
  ValueId previous_normed = stream.x, previous_stream = stream.x, deferred = -1;
  bool first = true;
  for (const Sublayer& s : layer.sublayers) {
    ValueId from = s.input == SublayerInput::layer_input ? layer_input : s.input == SublayerInput::previous_stream ? previous_stream : stream.x;
    previous_stream = from;
    std::vector<ValueId> hyper_out;
    if (m.residual == ResidualKind::attention_residual) {
      from = attention_residual(b, m, from, stream.blocks, s.residual_name);
      if (first && layer.stores_block) stream.blocks.push_back(layer_input);  // from the next sublayer on; here it is the running sum itself
    } else if (hyper(m)) {
      const auto call = hyper_call(b, m, stream.x, m.residual == ResidualKind::hyper ? op::HyperForm::mhc : op::HyperForm::input);
      const auto weights = hyper_weights(b, m, call, s.residual_name);
      hyper_out = b.call(call, std::array{stream.x}, weights);
      from = hyper_out[0];
    }
    first = false;
    ValueId normed = s.input == SublayerInput::previous_normed ? previous_normed : from;
    if (!s.pre_norm.empty()) normed = norm(b, m, normed, s.pre_norm);
    previous_normed = normed;
    ValueId y = run_mixer(b, m, s, normed, stream);
    if (!s.post_norm.empty()) y = norm(b, m, y, s.post_norm);
    if (s.input == SublayerInput::previous_normed) {
      deferred = deferred < 0 ? y : add(b, deferred, y);
    } else if (hyper(m)) {
      const op::HyperPost post{.tokens = rows(b, stream.x), .hidden = m.hidden, .streams = m.streams, .mixes = m.residual == ResidualKind::hyper};
      stream.x = (post.mixes ? b.call(post, {stream.x, y, hyper_out[1], hyper_out[2]}) : b.call(post, {stream.x, y, hyper_out[1]})).front();
    } else {
      stream.x = add(b, stream.x, y);
    }
  }
  if (deferred >= 0) stream.x = add(b, stream.x, deferred);
}

std::int64_t loss_tokens(std::int64_t tokens, std::int64_t loss_chunks) {
  constexpr std::int64_t tile = 128, least = 2048;
  const std::int64_t chunks = std::max<std::int64_t>(1, loss_chunks), whole_tiles = (tokens / chunks + (tokens % chunks != 0) + tile - 1) / tile * tile;
  return std::max<std::int64_t>(1, std::min(tokens, std::max(whole_tiles, least)));
}

void compose_head(Builder& b, const ModelSpec& m, Stream& stream, std::int64_t loss_chunks) {
  ValueId x = stream.x;
  if (m.residual == ResidualKind::attention_residual) x = attention_residual(b, m, x, stream.blocks, m.residual_head_name);
  if (hyper(m)) {
    op::HyperPre call = hyper_call(b, m, x, m.residual_head_name.empty() ? op::HyperForm::mean : op::HyperForm::head);
    call.affine = m.hyper_head_affine;
    const auto weights = call.form == op::HyperForm::mean ? std::vector<WeightId>{} : hyper_weights(b, m, call, m.residual_head_name);
    x = b.call(call, std::array{x}, weights).front();
  }
  x = b.enter_tensor_region(norm(b, m, x, m.norm_name));
  const ValueId labels = b.input("labels", {rows(b, x)}, DType::i32, false);
  const WeightClass cls = m.tied_head ? WeightClass::embedding : WeightClass::head;
  const WeightId w = m.tied_head ? b.weight(cls, m.embedding_name, {m.vocabulary, m.hidden}, WeightSplit::column, std::vector<TensorSource>{})
                                 : b.weight(cls, m.head_name, {m.vocabulary, m.hidden}, WeightSplit::column, m.stored.base);
  std::vector<WeightId> weights{w};
  if (m.head_bias) weights.push_back(b.weight(cls, "lm_head.bias", {m.vocabulary}, WeightSplit::column, m.stored.base));
  for (const WeightId a : b.adapters(w, m.head_name, m.hidden, m.vocabulary, WeightSplit::none, WeightSplit::column)) weights.push_back(a);
  const std::int64_t t = rows(b, x);
  op::CrossEntropy call{.tokens = t, .hidden = m.hidden, .vocabulary = local(b, m.vocabulary), .token_chunk = loss_tokens(t, loss_chunks), .bias = m.head_bias,
                        .training = b.training(cls), .lora_rank = b.lora_rank(cls), .lora_scale = lora_scale(b, cls)};
  const bool merges = b.context().tp > 1 && b.context().merges_loss;
  call.fused_gradient = call.training == Training::frozen && !merges;   // the gradient of a part needs the sum over all
  const ValueId loss = b.call(call, std::array{x, labels}, weights).front();
  // Else of each token the largest logit, the sum of exponentials and the label's logit are summed over the parts of the vocabulary.
  b.output(merges ? b.merge_loss(loss, t) : b.sum_statistics(loss, t * 3 * static_cast<std::int64_t>(sizeof(float)), false));
}

Stream stream_inputs(Builder& b, const ModelSpec& m, std::int64_t layer) {
  Stream stream;
  const std::int64_t t = b.tokens();
  stream.x = b.input("x", {t, m.hidden * (hyper(m) ? m.streams : 1)});
  for (std::int64_t i = 0, n = stored_before(m, layer); i < n; ++i) stream.blocks.push_back(b.input(fmt::format("block_{}", i), {t, m.hidden}));
  if (layer >= static_cast<std::int64_t>(m.layers.size())) return stream;
  const LayerSpec& spec = m.layers[static_cast<std::size_t>(layer)];
  if (const DsaIndexer* i = shared_indexer(spec)) stream.indices = b.input("indices", {b.context().tokens, std::max<std::int64_t>(1, i->topk / std::max<std::int64_t>(1, i->key_pool))}, DType::i32, false);
  if (hash_routed(spec)) stream.token_ids = b.input("token_ids", {t}, DType::i32, false);
  return stream;
}

void stream_outputs(Builder& b, const Stream& stream) {
  b.output(stream.x);
  if (stream.made_indices) b.output(stream.indices);
}

std::string attention_name(const LayerSpec& layer) {
  struct Name {
    std::string operator()(const GqaAttention& a) const { return a.index_topk > 0 ? "dsa" : "gqa"; }
    std::string operator()(const MlaAttention& a) const { return a.indexer ? "dsa" : "mla"; }
    std::string operator()(const DenseFfn&) const { return {}; }
    std::string operator()(const MoeFfn&) const { return {}; }
    std::string operator()(const KdaAttention&) const { return "kda"; }
    std::string operator()(const GdnAttention&) const { return "gdn"; }
    std::string operator()(const Mamba2Mixer&) const { return "mamba2"; }
    std::string operator()(const Mamba1Mixer&) const { return "mamba1"; }
    std::string operator()(const LightningAttention&) const { return "lightning"; }
    std::string operator()(const CompressedAttention&) const { return "compressed"; }
  };
  for (const Sublayer& s : layer.sublayers)
    if (const std::string name = std::visit(Name{}, s.mixer); !name.empty()) return name;
  return "none";
}

std::string ffn_name(const LayerSpec& layer) {
  std::string name = "none";
  for (const Sublayer& s : layer.sublayers) {
    if (std::holds_alternative<MoeFfn>(s.mixer)) return "moe";
    if (std::holds_alternative<DenseFfn>(s.mixer)) name = "dense";
  }
  return name;
}

std::string layer_kind(const ModelSpec& m, std::int64_t layer) {
  const LayerSpec& spec = m.layers[static_cast<std::size_t>(layer)];
  const std::int64_t blocks = stored_before(m, layer);
  std::int64_t first = 0, stored = 0;
  for (; first < layer; ++first) {
    const LayerSpec& other = m.layers[static_cast<std::size_t>(first)];
    if (std::min<std::int64_t>(stored, op::AttentionResidual::most_blocks) == blocks && other == spec) break;
    stored += other.stores_block ? 1 : 0;
  }
  std::string text = attention_name(spec) + "+" + ffn_name(spec);
  if (blocks > 0) text += fmt::format(" after {} stored block{}", blocks, blocks == 1 ? "" : "s");
  return text + fmt::format(" (as layer {})", first);
}

std::string checkpoint_name(const ModelSpec& m, const std::string& prefix, std::int64_t layer, const std::string& ours) {
  std::string name = ours;
  for (const auto& [from, to] : m.renames)
    if (const auto at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  return prefix + std::to_string(layer) + "." + name;
}

}  // namespace moeplan
