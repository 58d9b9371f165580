#pragma once
/// Mamba-2's state space scan (SSD): h_t = exp(-exp(A_log) dt_t) h_{t-1} + dt_t B_t x_t^T, y_t = C_t h_t + D x_t, with
/// dt = softplus(raw + dt_bias), one decay a head, B and C shared by the heads of a group; computed in chunks.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Mamba2 {
  static constexpr std::string_view kind = "mamba2";
  static constexpr std::int64_t chunk = 128;   ///< tokens worked on together

  std::int64_t tokens = 0;
  std::int64_t sequence_length = 0;
  std::int64_t heads = 0, head_dim = 0;
  std::int64_t groups = 0;             ///< divides heads
  std::int64_t state = 0;              ///< width of B and C
  std::int64_t packed_sequences = 0;   ///< 0: equal lengths
  Training training = Training::frozen;   ///< of A_log, dt_bias and D

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Mamba2::tokens).at_least(0), field("sequence_length", &Mamba2::sequence_length).above(0),
                           field("heads", &Mamba2::heads).above(0), field("head_dim", &Mamba2::head_dim).above(0),
                           field("groups", &Mamba2::groups, "of B and C; divides heads").above(0), field("state", &Mamba2::state, "width of B and C").above(0),
                           field("packed_sequences", &Mamba2::packed_sequences, "0: equal lengths").at_least(0),
                           field("training", &Mamba2::training, "of A_log, dt_bias and D"));
  }

  [[nodiscard]] Operands operands() const {
    const bool full = training == Training::full;
    Operands o;
    o.push_back({"x", Role::input, {tokens, heads * head_dim}, DType::bf16, for_any_grad});
    o.push_back({"b", Role::input, {tokens, groups * state}, DType::bf16, for_any_grad});
    o.push_back({"c", Role::input, {tokens, groups * state}, DType::bf16, for_any_grad});
    o.push_back({"dt", Role::input, {tokens, heads}, DType::bf16, for_any_grad});
    if (packed_sequences) o.push_back({"starts", Role::index, {boundaries(packed_sequences)}, DType::i64, for_any_grad});
    o.push_back({"a_log", Role::weight, {heads}, DType::f32, for_any_grad, full});
    o.push_back({"dt_bias", Role::weight, {heads}, DType::f32, for_any_grad, full});
    o.push_back({"d", Role::weight, {heads}, DType::f32, for_any_grad, full});
    o.push_back({"y", Role::output, {tokens, heads * head_dim}});
    return o;
  }

  /// A token with chunks of Q: C B^T a group (2 Q N), its product with x a head (2 Q P), building and reading the state (4 N P).
  /// Backward: both again, dx, dM, dB, dC inside a chunk (4 Q P a head, 4 Q N a group), the state's own gradient and its four uses.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double t = num(tokens), a = num(heads), p = num(head_dim), g = num(groups), n = num(state), q = num(chunk);
    if (pass == Pass::forward) return {t * (a * (2 * q * p + 4 * n * p + 2 * p) + g * 2 * q * n)};
    if (wants == Wants{false, false}) return {0};
    return {t * (a * (4 * q * p + 10 * n * p + 4 * p) + g * 6 * q * n)};
  }

  /// Float states at the chunks' edges (backward: and their gradients).
  [[nodiscard]] Bytes workspace(Pass pass, Wants wants) const {
    if (pass == Pass::backward && wants == Wants{false, false}) return {0};
    const std::int64_t chunks = (tokens + chunk - 1) / chunk;
    return {(pass == Pass::forward ? 4 : 8) * chunks * heads * head_dim * state};
  }

  static std::vector<Mamba2> cases() {
    return {{.tokens = 12, .sequence_length = 6, .heads = 4, .head_dim = 3, .groups = 2, .state = 5},
            {.tokens = 7, .sequence_length = 7, .heads = 2, .head_dim = 4, .groups = 1, .state = 4, .training = Training::full},
            {.tokens = 6, .sequence_length = 3, .heads = 1, .head_dim = 2, .groups = 1, .state = 2, .packed_sequences = 2},
            {.tokens = 0, .sequence_length = 4, .heads = 1, .head_dim = 2, .groups = 1, .state = 2}};
  }

  bool operator==(const Mamba2&) const = default;
};

}  // namespace moeplan::op
