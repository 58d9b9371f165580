#pragma once
/// y = x / rms(x) * w over the last dimension; with `residual_add` first s = x + residual, which is written too (fused: one pass).

#include <vector>

#include "kernels/contract.hpp"

namespace moeplan::op {

struct RmsNorm {
  static constexpr std::string_view kind = "rms_norm";

  std::int64_t tokens = 0;   ///< rows: tokens, or tokens x heads for per-head norms
  std::int64_t hidden = 0;   ///< width normalised over
  bool residual_add = false;
  bool has_weight = true;
  Training training = Training::frozen;
  bool unit_offset = false;  ///< the weight is stored as w - 1 (Qwen3-Next, Gemma)
  double epsilon = 1e-6;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &RmsNorm::tokens, "rows").at_least(0), field("hidden", &RmsNorm::hidden, "width").above(0),
                           field("residual_add", &RmsNorm::residual_add), field("has_weight", &RmsNorm::has_weight),
                           field("training", &RmsNorm::training), field("unit_offset", &RmsNorm::unit_offset, "the weight is stored minus one"),
                           field("epsilon", &RmsNorm::epsilon).above(0));
  }

  /// What is normalised is needed again for dx (and for dw); 1/rms is recomputed from it when absent, so it is kept: 4 bytes a row.
  [[nodiscard]] Operands operands() const {
    const bool full = training == Training::full;
    Operands o;
    o.push_back({"x", Role::input, {tokens, hidden}, DType::bf16, residual_add ? not_needed : for_any_grad});
    if (residual_add) o.push_back({"residual", Role::input, {tokens, hidden}});
    if (has_weight) o.push_back({"w", Role::weight, {hidden}, DType::bf16, for_input_grad, full});
    o.push_back({"y", Role::output, {tokens, hidden}});
    if (residual_add) o.push_back({"sum", Role::output, {tokens, hidden}, DType::bf16, for_any_grad});
    o.push_back({"inverse_rms", Role::aux, {tokens}, DType::f32, for_any_grad});
    return o;
  }

  /// About 4 operations an element forward and 8 backward (reduction, scale); never what bounds it.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    if (pass == Pass::backward && wants == Wants{false, false}) return {0};
    return {(pass == Pass::forward ? 4.0 : 8.0) * static_cast<double>(tokens) * static_cast<double>(hidden)};
  }

  static std::vector<RmsNorm> cases() {
    return {{1, 64}, {7, 128, true}, {33, 96, false, true, Training::full}, {5, 257, true, true, Training::full}, {3, 64, false, false}, {0, 64}};
  }

  bool operator==(const RmsNorm&) const = default;
};

}  // namespace moeplan::op
