#pragma once
/// Short causal depthwise convolution, with SiLU: y_tc = f(b_c + sum_j w_cj x_{t - taps + 1 + j, c}), zeros before a sequence's start.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct ShortConv {
  static constexpr std::string_view kind = "short_conv";

  std::int64_t tokens = 0;
  std::int64_t sequence_length = 0;
  std::int64_t channels = 0;
  std::int64_t taps = 4;
  bool bias = false;
  bool silu = true;
  std::int64_t packed_sequences = 0;   ///< 0: equal lengths
  Training training = Training::frozen;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &ShortConv::tokens).at_least(0), field("sequence_length", &ShortConv::sequence_length).above(0),
                           field("channels", &ShortConv::channels).above(0), field("taps", &ShortConv::taps).above(0), field("bias", &ShortConv::bias),
                           field("silu", &ShortConv::silu, "SiLU after the sum"), field("packed_sequences", &ShortConv::packed_sequences, "0: equal lengths").at_least(0),
                           field("training", &ShortConv::training));
  }

  /// The sum before SiLU is computed again from x, so x is all that is kept.
  [[nodiscard]] Operands operands() const {
    const bool full = training == Training::full;
    const Need x_need = silu ? for_any_grad : for_weight_grad;
    Operands o;
    o.push_back({"x", Role::input, {tokens, channels}, DType::bf16, silu || full ? x_need : not_needed});
    if (packed_sequences) o.push_back({"starts", Role::index, {boundaries(packed_sequences)}, DType::i64, for_any_grad});
    o.push_back({"w", Role::weight, {channels, taps}, DType::f32, silu ? for_any_grad : for_input_grad, full});
    if (bias) o.push_back({"b", Role::weight, {channels}, DType::f32, silu ? for_any_grad : not_needed, full});
    o.push_back({"y", Role::output, {tokens, channels}});
    return o;
  }

  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double n = num(tokens) * num(channels), k = num(taps), f = silu ? 4 : 0;
    if (pass == Pass::forward) return {n * (2 * k + f)};
    const bool dw = wants.weight_grad && training == Training::full;
    if (!wants.input_grad && !dw) return {0};
    return {n * ((silu ? 2 * k + 6 : 0) + (wants.input_grad ? 2 * k : 0) + (dw ? 2 * k : 0))};
  }

  static std::vector<ShortConv> cases() {
    return {{.tokens = 10, .sequence_length = 5, .channels = 6}, {.tokens = 7, .sequence_length = 7, .channels = 3, .bias = true, .training = Training::full},
            {.tokens = 6, .sequence_length = 2, .channels = 4, .taps = 4, .silu = false, .training = Training::full},
            {.tokens = 9, .sequence_length = 3, .channels = 5, .taps = 3, .packed_sequences = 3}, {.tokens = 0, .sequence_length = 4, .channels = 2}};
  }

  bool operator==(const ShortConv&) const = default;
};

}  // namespace moeplan::op
