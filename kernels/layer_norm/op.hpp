#pragma once
/// y = (x - mean(x)) / std(x) * w (+ b) over the last dimension (GPT-3, Phi-3.5-MoE, DBRX without b, the DSA indexer's key norm).

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct LayerNorm {
  static constexpr std::string_view kind = "layer_norm";

  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  bool bias = true;
  Training training = Training::frozen;   ///< of w and b
  double epsilon = 1e-5;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &LayerNorm::tokens, "rows").at_least(0), field("hidden", &LayerNorm::hidden, "width").above(0),
                           field("bias", &LayerNorm::bias), field("training", &LayerNorm::training), field("epsilon", &LayerNorm::epsilon).above(0));
  }

  [[nodiscard]] Operands operands() const {
    const bool full = training == Training::full;
    Operands o;
    o.push_back({"x", Role::input, {tokens, hidden}, DType::bf16, for_any_grad});
    o.push_back({"w", Role::weight, {hidden}, DType::bf16, for_input_grad, full});
    if (bias) o.push_back({"b", Role::weight, {hidden}, DType::bf16, not_needed, full});
    o.push_back({"y", Role::output, {tokens, hidden}});
    o.push_back({"mean", Role::aux, {tokens}, DType::f32, for_any_grad});
    o.push_back({"inverse_std", Role::aux, {tokens}, DType::f32, for_any_grad});
    return o;
  }

  /// About 7 operations an element forward and 12 backward; memory-bound.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    if (pass == Pass::backward && wants == Wants{false, false}) return {0};
    return {(pass == Pass::forward ? 7.0 : 12.0) * num(tokens) * num(hidden)};
  }

  static std::vector<LayerNorm> cases() {
    return {{3, 64}, {9, 33, true, Training::full}, {5, 48, false, Training::full}, {1, 128, false}, {0, 64}};
  }

  bool operator==(const LayerNorm&) const = default;
};

}  // namespace moeplan::op
