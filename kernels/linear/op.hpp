#pragma once
/// y = x W^T (+ b) (+ (alpha / r) x A^T B^T). W may be frozen and stored quantised; A and B are the LoRA pair.

#include <vector>

#include "kernels/contract.hpp"

namespace moeplan::op {

struct Linear {
  static constexpr std::string_view kind = "linear";

  std::int64_t tokens = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool bias = false;
  DType weight = DType::bf16;               ///< stored type of W
  Training training = Training::frozen;     ///< of W (and b); lora: W frozen, A and B trained
  std::int64_t lora_rank = 0;               ///< r; 0 without an adapter
  double lora_scale = 1;                    ///< alpha / r

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Linear::tokens, "rows of x").at_least(0), field("in", &Linear::in, "columns of x").above(0),
                           field("out", &Linear::out, "columns of y").above(0), field("bias", &Linear::bias),
                           field("weight", &Linear::weight, "stored type of W"), field("training", &Linear::training),
                           field("lora_rank", &Linear::lora_rank, "r").at_least(0), field("lora_scale", &Linear::lora_scale, "alpha / r"));
  }

  [[nodiscard]] Operands operands() const {
    const bool lora = lora_rank > 0, full = training == Training::full;
    Operands o;
    o.push_back({"x", Role::input, {tokens, in}, DType::bf16, full || lora ? for_weight_grad : not_needed});
    o.push_back({"w", Role::weight, {out, in}, weight, for_input_grad, full});
    if (bias) o.push_back({"b", Role::weight, {out}, DType::bf16, not_needed, full});
    if (lora) {
      o.push_back({"a", Role::weight, {lora_rank, in}, DType::bf16, for_input_grad, true});
      o.push_back({"b_lora", Role::weight, {out, lora_rank}, DType::bf16, for_any_grad, true});
    }
    o.push_back({"y", Role::output, {tokens, out}});
    if (lora) o.push_back({"x_a", Role::aux, {tokens, lora_rank}, DType::bf16, for_weight_grad});
    return o;
  }

  /// Forward 2 t i o (+ 2 t r (i + o)); input gradient the same; weight gradient 2 t i o if W is trained; for the pair the
  /// shared product dy B (2 t r o) is counted with the weight gradient, dA and dB are 2 t r (i + o) more, dx through A 2 t r i.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double t = static_cast<double>(tokens), i = static_cast<double>(in), o = static_cast<double>(out), r = static_cast<double>(lora_rank);
    if (pass == Pass::forward) return {2 * t * i * o + 2 * t * r * (i + o)};
    double f = 0;
    if (wants.input_grad) f += 2 * t * i * o + 2 * t * r * i;
    if (wants.weight_grad && training == Training::full) f += 2 * t * i * o;
    if (wants.weight_grad && lora_rank) f += 2 * t * r * (i + o);
    if (lora_rank && (wants.input_grad || wants.weight_grad)) f += 2 * t * r * o;
    return {f};
  }

  static std::vector<Linear> cases() {
    return {{1, 64, 32}, {257, 128, 72, true}, {33, 96, 64, false, DType::bf16, Training::full}, {128, 64, 128, false, DType::bf16, Training::lora, 8},
            {0, 64, 64}};
  }

  bool operator==(const Linear&) const = default;
};

}  // namespace moeplan::op
