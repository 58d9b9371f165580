#pragma once
/// Softmax attention over the keys that an indexer selected for each query (-1: no key). Latent form (MLA, `latent`): one key of
/// width d_qk for all heads whose first d_v columns are its value. Gathered form: kv_heads keys and values (MiniMax-M3), where an
/// index names a block of `block` keys. Causal inside a block.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct SparseAttention {
  static constexpr std::string_view kind = "sparse_attention";

  std::int64_t tokens = 0;
  std::int64_t sequence_length = 0;
  std::int64_t heads = 0, kv_heads = 1;
  std::int64_t d_qk = 0, d_v = 0;      ///< latent form: 576 and 512
  std::int64_t topk = 0;               ///< indices a query
  std::int64_t block = 1;              ///< keys an index names
  bool latent = true;                  ///< the value is the key's first d_v columns
  bool sinks = false;
  std::int64_t kv_tokens = 0;          ///< 0: as many as queries
  Training training = Training::frozen;   ///< of the sinks
  double scale = 0;                    ///< of the logits; 0: d_qk^-1/2 (MLA: the width before absorption)

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("tokens", &SparseAttention::tokens, "queries").at_least(0), field("sequence_length", &SparseAttention::sequence_length).above(0),
        field("heads", &SparseAttention::heads, "query heads").above(0), field("kv_heads", &SparseAttention::kv_heads, "1 in the latent form").above(0),
        field("d_qk", &SparseAttention::d_qk, "width of a query").above(0), field("d_v", &SparseAttention::d_v, "width of a value").above(0),
        field("topk", &SparseAttention::topk, "indices a query").above(0), field("block", &SparseAttention::block, "keys an index names").above(0),
        field("latent", &SparseAttention::latent, "the value is the key's first columns"), field("sinks", &SparseAttention::sinks),
        field("kv_tokens", &SparseAttention::kv_tokens, "keys; 0: as many as queries").at_least(0),
        field("training", &SparseAttention::training, "of the sinks"), field("scale", &SparseAttention::scale, "of the logits; 0: d_qk^-1/2").at_least(0));
  }

  [[nodiscard]] Operands operands() const {
    const std::int64_t s = kv_tokens ? kv_tokens : tokens;
    const bool trained = sinks && training == Training::full;
    const Need kept = trained ? for_any_grad : for_input_grad;
    Operands o;
    o.push_back({"q", Role::input, {tokens, heads * d_qk}, DType::bf16, for_input_grad});
    o.push_back({"kv", Role::input, {s, kv_heads * d_qk}, DType::bf16, for_input_grad});
    if (!latent) o.push_back({"v", Role::input, {s, kv_heads * d_v}, DType::bf16, for_input_grad});
    o.push_back({"indices", Role::index, {tokens, topk}, DType::i32, for_input_grad});
    if (sinks) o.push_back({"sinks", Role::weight, {heads}, DType::f32, trained ? for_weight_grad : not_needed, trained});
    o.push_back({"y", Role::output, {tokens, heads * d_v}, DType::bf16, kept});
    o.push_back({"lse", Role::aux, {tokens, heads}, DType::f32, kept});
    return o;
  }

  /// As dense attention, over the selected keys; the mean counts the queries near the start that see fewer than topk x block.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double pairs = num(tokens) * num(heads) * selected_keys(sequence_length, topk * block), qk = num(d_qk), v = num(d_v);
    if (pass == Pass::forward) return {2 * pairs * (qk + v)};
    if (wants.input_grad) return {2 * pairs * (3 * qk + 2 * v)};
    return {wants.weight_grad && sinks && training == Training::full ? 2 * num(tokens) * num(heads) * v : 0};
  }

  /// Backward: row sums, and the float accumulator of the keys' (and values') gradient that the queries scatter into.
  [[nodiscard]] Bytes workspace(Pass pass, Wants wants) const {
    if (pass == Pass::forward || !wants.input_grad) return {0};
    const std::int64_t s = kv_tokens ? kv_tokens : tokens;
    return {4 * (tokens * heads + s * kv_heads * (d_qk + (latent ? 0 : d_v)))};
  }

  static std::vector<SparseAttention> cases() {
    return {{.tokens = 12, .sequence_length = 6, .heads = 3, .d_qk = 10, .d_v = 8, .topk = 3},
            {.tokens = 9, .sequence_length = 9, .heads = 4, .kv_heads = 2, .d_qk = 6, .d_v = 4, .topk = 2, .block = 2, .latent = false},
            {.tokens = 7, .sequence_length = 7, .heads = 2, .d_qk = 8, .d_v = 6, .topk = 16, .sinks = true, .training = Training::full, .scale = 0.4},
            {.tokens = 0, .sequence_length = 4, .heads = 1, .d_qk = 4, .d_v = 4, .topk = 2}};
  }

  bool operator==(const SparseAttention&) const = default;
};

}  // namespace moeplan::op
