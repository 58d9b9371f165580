#pragma once
/// Lightning attention (MiniMax-M1): linear attention with a fixed decay a head, S_t = e^{-slope_h} S_{t-1} + k_t v_t^T,
/// o_t = S_t^T q_t, computed in chunks. slope_h = decay * 2^{-8 (h + 1) / total_heads}, for the head's index in the whole model.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct LightningAttention {
  static constexpr std::string_view kind = "lightning_attention";
  static constexpr std::int64_t chunk = 64;

  std::int64_t tokens = 0;
  std::int64_t sequence_length = 0;
  std::int64_t heads = 0, head_dim = 0;
  std::int64_t total_heads = 0;        ///< of the layer, before the tensor split; 0: heads
  double decay = 1;                    ///< layer's factor of the slopes
  double first_head = 0;               ///< index of this rank's first head
  std::int64_t packed_sequences = 0;   ///< 0: equal lengths

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &LightningAttention::tokens).at_least(0), field("sequence_length", &LightningAttention::sequence_length).above(0),
                           field("heads", &LightningAttention::heads).above(0), field("head_dim", &LightningAttention::head_dim).above(0),
                           field("total_heads", &LightningAttention::total_heads, "of the layer; 0: heads").at_least(0),
                           field("decay", &LightningAttention::decay, "layer's factor of the slopes").at_least(0),
                           field("first_head", &LightningAttention::first_head, "index of this rank's first head").at_least(0),
                           field("packed_sequences", &LightningAttention::packed_sequences, "0: equal lengths").at_least(0));
  }

  [[nodiscard]] Operands operands() const {
    const std::int64_t width = heads * head_dim;
    Operands o;
    o.push_back({"q", Role::input, {tokens, width}, DType::bf16, for_input_grad});
    o.push_back({"k", Role::input, {tokens, width}, DType::bf16, for_input_grad});
    o.push_back({"v", Role::input, {tokens, width}, DType::bf16, for_input_grad});
    if (packed_sequences) o.push_back({"starts", Role::index, {boundaries(packed_sequences)}, DType::i64, for_input_grad});
    o.push_back({"y", Role::output, {tokens, width}});
    return o;
  }

  /// A token and head: q k^T and its product with v in a chunk (4 C D), state read and update (4 D^2). Backward: states again (2 D^2),
  /// dq, dk, dv through states and dS (8 D^2), five products in a chunk (10 C D).
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double n = num(tokens) * num(heads), d = num(head_dim), c = num(chunk);
    if (pass == Pass::forward) return {n * (4 * c * d + 4 * d * d)};
    return {wants.input_grad ? n * (10 * c * d + 10 * d * d) : 0};
  }

  /// Float states at the chunks' edges, backward with their gradients.
  [[nodiscard]] Bytes workspace(Pass pass, Wants wants) const {
    if (pass == Pass::backward && !wants.input_grad) return {0};
    return {(pass == Pass::forward ? 4 : 8) * ((tokens + chunk - 1) / chunk) * heads * head_dim * head_dim};
  }

  static std::vector<LightningAttention> cases() {
    return {{.tokens = 10, .sequence_length = 5, .heads = 2, .head_dim = 4}, {.tokens = 7, .sequence_length = 7, .heads = 1, .head_dim = 6, .total_heads = 4, .decay = 0.7, .first_head = 2},
            {.tokens = 9, .sequence_length = 9, .heads = 1, .head_dim = 4, .packed_sequences = 3}, {.tokens = 0, .sequence_length = 4, .heads = 1, .head_dim = 4}};
  }

  bool operator==(const LightningAttention&) const = default;
};

}  // namespace moeplan::op
