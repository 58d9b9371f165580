#pragma once
/// RMSNorm with an output gate. Norm first (KDA, Gated DeltaNet, lightning attention): y = rms(x) * w * f(gate). Gate first
/// (Mamba-2): y = rms(x * f(gate)) * w. f is sigmoid or silu. With `groups` > 1 each of `groups` equal parts of a row has its own rms.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

enum class GateFunction : std::uint8_t { sigmoid, silu, identity };

}  // namespace moeplan::op

namespace moeplan {

template <>
struct EnumNames<op::GateFunction> {
  static constexpr std::array names{std::pair{op::GateFunction::sigmoid, std::string_view("sigmoid")},
                                    std::pair{op::GateFunction::silu, std::string_view("silu")},
                                    std::pair{op::GateFunction::identity, std::string_view("identity")}};
};

}  // namespace moeplan

namespace moeplan::op {

struct GatedRmsNorm {
  static constexpr std::string_view kind = "gated_rms_norm";

  std::int64_t tokens = 0;   ///< rows: tokens, or tokens x heads for per-head norms
  std::int64_t hidden = 0;   ///< columns of a row, length of the weight
  std::int64_t groups = 1;   ///< parts of a row normalised apart
  GateFunction gate = GateFunction::sigmoid;
  bool gate_first = false;
  Training training = Training::frozen;
  double epsilon = 1e-6;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &GatedRmsNorm::tokens, "rows").at_least(0), field("hidden", &GatedRmsNorm::hidden, "columns").above(0),
                           field("groups", &GatedRmsNorm::groups, "parts of a row normalised apart").above(0),
                           field("gate", &GatedRmsNorm::gate, "sigmoid or silu"), field("gate_first", &GatedRmsNorm::gate_first, "gate before the norm (Mamba-2)"),
                           field("training", &GatedRmsNorm::training), field("epsilon", &GatedRmsNorm::epsilon).above(0));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"x", Role::input, {tokens, hidden}, DType::bf16, for_any_grad});
    o.push_back({"gate", Role::input, {tokens, hidden}, DType::bf16, for_any_grad});
    o.push_back({"w", Role::weight, {hidden}, DType::bf16, for_input_grad, training == Training::full});
    o.push_back({"y", Role::output, {tokens, hidden}});
    o.push_back({"inverse_rms", Role::aux, {tokens, groups}, DType::f32, for_any_grad});
    return o;
  }

  /// About 8 operations an element forward and 18 backward; memory-bound.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    if (pass == Pass::backward && wants == Wants{false, false}) return {0};
    return {(pass == Pass::forward ? 8.0 : 18.0) * num(tokens) * num(hidden)};
  }

  static std::vector<GatedRmsNorm> cases() {
    return {{3, 64}, {7, 40, 1, GateFunction::silu, false, Training::full}, {5, 48, 3, GateFunction::silu, true, Training::full},
            {1, 33, 1, GateFunction::sigmoid, false, Training::full}, {0, 64}};
  }

  bool operator==(const GatedRmsNorm&) const = default;
};

}  // namespace moeplan::op
