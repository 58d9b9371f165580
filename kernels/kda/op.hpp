#pragma once
/// Kimi Delta Attention: a linear recurrence with a decay a channel and a delta-rule update, computed in chunks. q and k are
/// L2-normalised inside, the decay is made inside from the raw gate, A_log and dt_bias (softplus form, or bounded: lower_bound *
/// sigmoid(exp(A_log) (gate + dt_bias))); beta comes activated (sigmoid of its projection). Nothing but q, k, v, gate and beta is
/// kept for the backward: decays, the chunks' triangular factors and the states are computed again.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Kda {
  static constexpr std::string_view kind = "kda";
  static constexpr std::int64_t chunk = 64;   ///< tokens worked on together

  std::int64_t tokens = 0;
  std::int64_t sequence_length = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;           ///< of keys and values
  bool bounded = false;
  std::int64_t packed_sequences = 0;   ///< 0: equal lengths
  Training training = Training::frozen;   ///< of A_log and dt_bias
  double lower_bound = -5;             ///< of the bounded gate, in [-5, 0)

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Kda::tokens).at_least(0), field("sequence_length", &Kda::sequence_length).above(0),
                           field("heads", &Kda::heads).above(0), field("head_dim", &Kda::head_dim, "of keys and values").above(0),
                           field("bounded", &Kda::bounded, "bounded form of the gate"),
                           field("packed_sequences", &Kda::packed_sequences, "0: equal lengths").at_least(0),
                           field("training", &Kda::training, "of A_log and dt_bias"), field("lower_bound", &Kda::lower_bound, "of the bounded gate").between(-5, 0));
  }

  [[nodiscard]] Operands operands() const {
    const bool full = training == Training::full;
    const std::int64_t width = heads * head_dim;
    Operands o;
    o.push_back({"q", Role::input, {tokens, width}, DType::bf16, for_any_grad});
    o.push_back({"k", Role::input, {tokens, width}, DType::bf16, for_any_grad});
    o.push_back({"v", Role::input, {tokens, width}, DType::bf16, for_any_grad});
    o.push_back({"gate", Role::input, {tokens, width}, DType::bf16, for_any_grad});
    o.push_back({"beta", Role::input, {tokens, heads}, DType::f32, for_any_grad});
    if (packed_sequences) o.push_back({"starts", Role::index, {boundaries(packed_sequences)}, DType::i64, for_any_grad});
    o.push_back({"a_log", Role::weight, {heads}, DType::f32, for_any_grad, full});
    o.push_back({"dt_bias", Role::weight, {width}, DType::f32, for_any_grad, full});
    o.push_back({"y", Role::output, {tokens, width}});
    return o;
  }

  /// A token and head with D = head_dim and chunks of C. Forward: the factors L, P, W, U and P N (10 C D), the three state products
  /// (6 D^2), the triangular inverse (2/3 C^2): 183 kFLOP at D = 128, C = 64. Backward: factors and states again (8 C D + 4 D^2 + 2/3
  /// C^2), dN in the reverse scan and once more beside the rest (4 C D + 4 D^2), dS (4 D^2), dP (2 C D), the gradients of the decayed
  /// q, k and of W (6 D^2), dT and dL (4 C D + 4 C^2), Z (4 C D), the row and column sides of dq and dk (8 C D): 560 kFLOP.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double n = num(tokens) * num(heads), d = num(head_dim), c = num(chunk);
    if (pass == Pass::forward) return {n * (6 * d * d + 10 * c * d + 2 * c * c / 3)};
    if (wants == Wants{false, false}) return {0};
    return {n * (18 * d * d + 30 * c * d + 14 * c * c / 3)};
  }

  /// What today's Triton kernels take, all heads at once (ours take less: scratch.hpp). Forward: the chunks' factors (P, T-applied keys
  /// and values, decayed queries and keys; 2 (4 D + C) bytes a token and head). Backward: 40 D bytes, flash-linear-attention's peak of
  /// 7,716 bytes a token and head of 128 columns (H200, bench/results/kda_h200.md) less operands and gradients of 2,568.
  [[nodiscard]] Bytes workspace(Pass pass, Wants wants) const {
    if (pass == Pass::backward && wants == Wants{false, false}) return {0};
    return {heads * tokens * (pass == Pass::forward ? 2 * (4 * head_dim + chunk) : 40 * head_dim)};
  }

  static std::vector<Kda> cases() {
    return {{.tokens = 12, .sequence_length = 6, .heads = 2, .head_dim = 4}, {.tokens = 9, .sequence_length = 9, .heads = 1, .head_dim = 8, .bounded = true, .training = Training::full},
            {.tokens = 7, .sequence_length = 7, .heads = 1, .head_dim = 4, .packed_sequences = 2}, {.tokens = 1, .sequence_length = 1, .heads = 1, .head_dim = 4},
            {.tokens = 0, .sequence_length = 4, .heads = 1, .head_dim = 4}};
  }

  bool operator==(const Kda&) const = default;
};

}  // namespace moeplan::op
