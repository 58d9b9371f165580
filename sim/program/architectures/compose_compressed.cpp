/// DeepSeek-V4's attention: one key-value head, a sliding window beside compressed keys, grouped output.

#include <algorithm>

#include "sim/program/architectures/compose_parts.hpp"

namespace moeplan::compose {
namespace {

constexpr WeightClass attention = WeightClass::attention;

/// Compressed keys of width d under the scope's `compressor.`; -1 if no whole run fits the sequence.
ValueId compressed(Builder& b, const ModelSpec& m, ValueId x, const std::string& name, std::int64_t d, std::int64_t ratio, WeightClass cls) {
  const bool overlap = ratio == 4;  // the release's sparse rate reads the run before too
  const std::int64_t width = overlap ? 2 * d : d;
  const ValueId kv = project(b, m, x, name + ".wkv", width, cls), gate = project(b, m, x, name + ".wgate", width, cls);
  const WeightId ape = small(b, name + ".ape", {ratio, width});
  const op::Compress call{.tokens = rows(b, x), .sequence_length = b.run(), .width = d, .ratio = ratio, .overlap = overlap, .training = b.training(WeightClass::other)};
  auto before = overlap ? b.halo(std::array{kv, gate}, ratio) : std::vector<ValueId>{};
  const ValueId y = b.call(call, {kv, gate}, {ape}).front();
  b.reads_also(ContextWork::halo, std::move(before));
  const WeightId w = b.weight(WeightClass::norm, name + ".norm.weight", {d}, WeightSplit::none, m.stored.base);
  const ValueId normed = b.call(op::RmsNorm{.tokens = call.rows(), .hidden = d, .training = b.training(WeightClass::norm), .epsilon = m.norm_epsilon}, {y}, {w}).front();
  return call.rows() > 0 ? b.gather_context(normed) : -1;
}

}  // namespace

ValueId mix(Builder& b, const ModelSpec& m, const CompressedAttention& a, ValueId x, Stream&) {
  const std::int64_t heads = local(b, a.heads), t = rows(b, x), seq = b.context().sequence_length;
  const Rope rope{};
  const ValueId q_latent = rms(b, m, project(b, m, x, "wq_a", a.q_lora, attention), "q_norm");
  ValueId q = project(b, m, q_latent, "wq_b", a.heads * a.head_dim, attention, WeightSplit::column);
  q = head_norm(b, m, q, "", heads, a.head_dim, false);
  q = rotate(b, rope, q, heads, a.head_dim, a.rope_dim, true);
  ValueId kv = rms(b, m, project(b, m, x, "wkv", a.head_dim, attention), "kv_norm");
  kv = rotate(b, rope, kv, 1, a.head_dim, a.rope_dim, true);
  const WeightId sinks = small(b, "attn_sink", {a.heads}, WeightSplit::column);

  op::CompressedAttention call{.tokens = t, .sequence_length = seq, .heads = heads, .head_dim = a.head_dim, .window = a.window, .training = b.training(WeightClass::other)};
  std::vector<ValueId> values{q, kv};
  if (a.ratio > 0) {
    const ValueId keys = compressed(b, m, x, "compressor", a.head_dim, a.ratio, attention);
    ValueId indices = -1;
    if (a.ratio == 4) {
      const ValueId index_keys = compressed(b, m, x, "indexer.compressor", a.index_dim, a.ratio, WeightClass::other);
      const ValueId index_q = project(b, m, q_latent, "indexer.wq_b", a.index_heads * a.index_dim, WeightClass::other);
      const ValueId weights = project(b, m, x, "indexer.weights_proj", a.index_heads, WeightClass::other);
      if (index_keys >= 0)
        indices = b.call(op::Indexer{.tokens = t, .sequence_length = seq, .heads = a.index_heads, .dim = a.index_dim, .topk = a.index_topk, .key_ratio = a.ratio, .kv_tokens = rows(b, index_keys) * a.ratio},
                         {index_q, index_keys, weights}).front();
    }
    if (keys >= 0) {
      call.ratio = a.ratio;
      call.compressed = rows(b, keys);
      values.push_back(keys);
      if (indices >= 0) {
        call.topk = a.index_topk;
        values.push_back(indices);
      }
    }
  }
  auto before = b.halo(std::array{kv}, std::min(a.window - 1, b.run()));
  ValueId y = b.call(call, values, std::array{sinks}).front();
  b.reads_also(ContextWork::halo, std::move(before), 1);
  y = rotate(b, rope, y, heads, a.head_dim, a.rope_dim, true, true);
  const std::int64_t groups = local(b, a.o_groups), in = a.heads * a.head_dim / a.o_groups;
  const WeightId wo_a = b.weight(attention, "wo_a.weight", {a.o_groups * a.o_lora, in}, WeightSplit::column, stored(m, attention));
  std::vector<WeightId> weights{wo_a};
  for (const WeightId w : b.adapters(wo_a, "wo_a", in, a.o_groups * a.o_lora, WeightSplit::none, WeightSplit::column)) weights.push_back(w);
  y = b.call(op::HeadLinear{.tokens = t, .heads = groups, .in = in, .block = a.o_lora, .begin = 0, .count = a.o_lora, .weight = b.held(attention),
                            .training = b.training(attention), .lora_rank = b.lora_rank(attention), .lora_scale = lora_scale(b, attention)},
             std::array{y}, weights).front();
  return project(b, m, y, "wo_b", m.hidden, attention, WeightSplit::row);
}

}  // namespace moeplan::compose
