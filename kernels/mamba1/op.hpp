#pragma once
/// Mamba-1's selective scan (Jamba): h_td = exp(-exp(A_log_d) dt_td) h_{t-1,d} + dt_td B_t x_td, y_td = C_t . h_td + D_d x_td, with
/// dt = softplus(raw) and the raw value biased by its projection; a decay for every channel and state entry.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Mamba1 {
  static constexpr std::string_view kind = "mamba1";

  std::int64_t tokens = 0;
  std::int64_t sequence_length = 0;
  std::int64_t inner = 0;
  std::int64_t state = 0;
  std::int64_t packed_sequences = 0;      ///< 0: equal lengths
  Training training = Training::frozen;   ///< of A_log and D

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Mamba1::tokens).at_least(0), field("sequence_length", &Mamba1::sequence_length).above(0),
                           field("inner", &Mamba1::inner, "channels").above(0), field("state", &Mamba1::state, "state entries a channel").above(0),
                           field("packed_sequences", &Mamba1::packed_sequences, "0: equal lengths").at_least(0), field("training", &Mamba1::training, "of A_log and D"));
  }

  [[nodiscard]] Operands operands() const {
    const bool full = training == Training::full;
    Operands o;
    o.push_back({"x", Role::input, {tokens, inner}, DType::bf16, for_any_grad});
    o.push_back({"dt", Role::input, {tokens, inner}, DType::bf16, for_any_grad});
    o.push_back({"b", Role::input, {tokens, state}, DType::bf16, for_any_grad});
    o.push_back({"c", Role::input, {tokens, state}, DType::bf16, for_any_grad});
    if (packed_sequences) o.push_back({"starts", Role::index, {boundaries(packed_sequences)}, DType::i64, for_any_grad});
    o.push_back({"a_log", Role::weight, {inner, state}, DType::f32, for_any_grad, full});
    o.push_back({"d", Role::weight, {inner}, DType::f32, for_any_grad, full});
    o.push_back({"y", Role::output, {tokens, inner}});
    return o;
  }

  /// 9 operations a token, channel and state entry (the count of the published selective scan) and 2 for D; backward runs the scan
  /// again and one back, with two more gradients each.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double n = num(tokens) * num(inner);
    if (pass == Pass::forward) return {n * (9 * num(state) + 2)};
    if (wants == Wants{false, false}) return {0};
    return {n * (27 * num(state) + 6)};
  }

  static std::vector<Mamba1> cases() {
    return {{.tokens = 10, .sequence_length = 5, .inner = 6, .state = 3}, {.tokens = 7, .sequence_length = 7, .inner = 4, .state = 4, .training = Training::full},
            {.tokens = 8, .sequence_length = 8, .inner = 3, .state = 2, .packed_sequences = 3}, {.tokens = 0, .sequence_length = 4, .inner = 2, .state = 2}};
  }

  bool operator==(const Mamba1&) const = default;
};

}  // namespace moeplan::op
