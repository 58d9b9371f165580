#pragma once
/// y = a + b, or a + scale * b where `scaled`: the residual sum, and the shared experts' sum. Where a norm follows, `rms_norm` with
/// `residual_add` does both.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Add {
  static constexpr std::string_view kind = "add";

  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  bool scaled = false;
  double scale = 1;   ///< of b, where `scaled`: residual multiplier (Granite)

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Add::tokens, "rows").at_least(0), field("hidden", &Add::hidden, "columns").above(0),
                           field("scaled", &Add::scaled, "b is multiplied by scale"), field("scale", &Add::scale, "multiplies b"));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"a", Role::input, {tokens, hidden}});
    o.push_back({"b", Role::input, {tokens, hidden}});
    o.push_back({"y", Role::output, {tokens, hidden}});
    return o;
  }

  /// Both gradients are dy itself (b's times `scale`): without a scale nothing is computed and nothing moves.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double n = num(tokens) * num(hidden), s = scaled ? n : 0;
    if (pass == Pass::forward) return {n + s};
    return {wants.input_grad ? s : 0};
  }

  [[nodiscard]] Bytes bytes_moved(Pass pass, Wants wants) const {
    const std::int64_t n = 2 * tokens * hidden;
    if (pass == Pass::forward) return {3 * n};
    return {wants.input_grad && scaled ? 2 * n : 0};
  }

  static std::vector<Add> cases() { return {{3, 64}, {7, 33}, {2, 16, true, 0.22}, {0, 64}}; }

  bool operator==(const Add&) const = default;
};

}  // namespace moeplan::op
