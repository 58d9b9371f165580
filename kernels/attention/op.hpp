#pragma once
/// Softmax attention of query heads over grouped key and value heads, causal, with an optional sliding window and sinks (a learned
/// logit per head that only joins the denominator). Flash form: nothing of size sequence x sequence is written. Part of the key may
/// be shared by all heads (`shared_key`, MLA's rotary part), so MLA needs no broadcast copy: k then holds the heads' own part.
/// Sequences are `sequence_length` long, or packed one after the other with their boundaries as an operand.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Attention {
  static constexpr std::string_view kind = "attention";

  std::int64_t tokens = 0;             ///< queries
  std::int64_t sequence_length = 0;    ///< of one sequence; the mean if packed
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t d_qk = 0, d_v = 0;      ///< width of a query (and whole key) head, of a value head
  std::int64_t window = 0;             ///< keys a query sees at most, itself included; 0: all before it
  bool sinks = false;
  std::int64_t shared_key = 0;         ///< trailing columns of the key that all heads share; an operand of their own
  std::int64_t kv_tokens = 0;          ///< keys, if more than queries (context parallelism); 0: as many
  std::int64_t packed_sequences = 0;   ///< 0: equal lengths
  bool causal = true;
  Training training = Training::frozen;   ///< of the sinks
  double scale = 0;                    ///< of the logits; 0: d_qk^-1/2
  double softcap = 0;                  ///< logits become c tanh(z / c) (Grok-1); 0: none

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("tokens", &Attention::tokens, "queries").at_least(0), field("sequence_length", &Attention::sequence_length, "of one sequence").above(0),
        field("heads", &Attention::heads, "query heads").above(0), field("kv_heads", &Attention::kv_heads, "key and value heads; divides heads").above(0),
        field("d_qk", &Attention::d_qk, "width of a query head").above(0), field("d_v", &Attention::d_v, "width of a value head").above(0),
        field("window", &Attention::window, "keys a query sees at most; 0: all before it").at_least(0), field("sinks", &Attention::sinks),
        field("shared_key", &Attention::shared_key, "trailing key columns common to all heads").at_least(0),
        field("kv_tokens", &Attention::kv_tokens, "keys; 0: as many as queries").at_least(0),
        field("packed_sequences", &Attention::packed_sequences, "0: equal lengths").at_least(0), field("causal", &Attention::causal),
        field("training", &Attention::training, "of the sinks"), field("scale", &Attention::scale, "of the logits; 0: d_qk^-1/2").at_least(0),
        field("softcap", &Attention::softcap).at_least(0));
  }

  [[nodiscard]] Operands operands() const {
    const std::int64_t s = kv_tokens ? kv_tokens : tokens;
    const bool trained = sinks && training == Training::full;
    const Need kept = trained ? for_any_grad : for_input_grad;   // the sinks' gradient needs o and lse only
    Operands o;
    o.push_back({"q", Role::input, {tokens, heads * d_qk}, DType::bf16, for_input_grad});
    o.push_back({"k", Role::input, {s, kv_heads * (d_qk - shared_key)}, DType::bf16, for_input_grad});
    if (shared_key) o.push_back({"k_shared", Role::input, {s, shared_key}, DType::bf16, for_input_grad});
    o.push_back({"v", Role::input, {s, kv_heads * d_v}, DType::bf16, for_input_grad});
    if (packed_sequences) o.push_back({"starts", Role::index, {boundaries(packed_sequences)}, DType::i32, for_input_grad});
    if (sinks) o.push_back({"sinks", Role::weight, {heads}, DType::f32, trained ? for_weight_grad : not_needed, trained});
    o.push_back({"y", Role::output, {tokens, heads * d_v}, DType::bf16, kept});
    o.push_back({"lse", Role::aux, {tokens, heads}, DType::f32, kept});
    return o;
  }

  /// Two GEMMs forward over the visible pairs; five backward (the logits again, dV, dP, dQ, dK: 2.5 x forward at d_qk = d_v).
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double pairs = num(tokens) * num(heads) * visible_keys(sequence_length, window, causal), qk = num(d_qk), v = num(d_v);
    if (pass == Pass::forward) return {2 * pairs * (qk + v)};
    if (wants.input_grad) return {2 * pairs * (3 * qk + 2 * v)};
    return {wants.weight_grad && sinks && training == Training::full ? 2 * num(tokens) * num(heads) * v : 0};
  }

  /// Backward: row sums <dy, y> and the float accumulator of dq.
  [[nodiscard]] Bytes workspace(Pass pass, Wants wants) const {
    if (pass == Pass::forward || !wants.input_grad) return {0};
    return {4 * tokens * heads * (1 + d_qk)};
  }

  static std::vector<Attention> cases() {
    return {{.tokens = 10, .sequence_length = 5, .heads = 4, .kv_heads = 2, .d_qk = 8, .d_v = 8},
            {.tokens = 7, .sequence_length = 7, .heads = 2, .kv_heads = 2, .d_qk = 12, .d_v = 8, .shared_key = 4},
            {.tokens = 9, .sequence_length = 9, .heads = 3, .kv_heads = 1, .d_qk = 6, .d_v = 5, .window = 3, .sinks = true, .training = Training::full},
            {.tokens = 8, .sequence_length = 4, .heads = 2, .kv_heads = 1, .d_qk = 4, .d_v = 4, .packed_sequences = 2, .softcap = 5},
            {.tokens = 6, .sequence_length = 3, .heads = 2, .kv_heads = 2, .d_qk = 4, .d_v = 4, .causal = false, .scale = 0.3},
            {.tokens = 1, .sequence_length = 1, .heads = 1, .kv_heads = 1, .d_qk = 4, .d_v = 4},
            {.tokens = 0, .sequence_length = 4, .heads = 1, .kv_heads = 1, .d_qk = 4, .d_v = 4}};
  }

  bool operator==(const Attention&) const = default;
};

}  // namespace moeplan::op
