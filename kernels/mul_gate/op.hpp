#pragma once
/// y = x * f(gate): the attention output gate (elementwise: K3, Qwen3-Next; head-wise: Step-3.5), the shared-expert gate (one column).
/// With fewer gate columns than x has, `width / gate_width` neighbouring columns share one gate.

#include <vector>

#include "kernels/gated_rms_norm/op.hpp"

namespace moeplan::op {

struct MulGate {
  static constexpr std::string_view kind = "mul_gate";

  std::int64_t tokens = 0;
  std::int64_t width = 0;
  std::int64_t gate_width = 0;     ///< divides `width`
  GateFunction function = GateFunction::sigmoid;
  DType gate = DType::bf16;        ///< type of the gate (f32 for routing weights)

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &MulGate::tokens, "rows").at_least(0), field("width", &MulGate::width, "columns of x").above(0),
                           field("gate_width", &MulGate::gate_width, "columns of gate; divides width").above(0),
                           field("function", &MulGate::function, "sigmoid, silu or identity"), field("gate", &MulGate::gate, "type of the gate"));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"x", Role::input, {tokens, width}, DType::bf16, for_input_grad});
    o.push_back({"gate", Role::input, {tokens, gate_width}, gate, for_input_grad});
    o.push_back({"y", Role::output, {tokens, width}});
    return o;
  }

  /// One product an element and about 4 operations a gate forward; three products an element and about 6 a gate backward.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    if (pass == Pass::backward && !wants.input_grad) return {0};
    const double t = num(tokens), w = num(width), g = num(gate_width);
    return {pass == Pass::forward ? t * (w + 4 * g) : t * (3 * w + 6 * g)};
  }

  static std::vector<MulGate> cases() {
    return {{5, 32, 32}, {3, 24, 4}, {7, 33, 1, GateFunction::sigmoid}, {2, 16, 1, GateFunction::identity, DType::f32}, {3, 8, 8, GateFunction::silu}, {0, 16, 4}};
  }

  bool operator==(const MulGate&) const = default;
};

}  // namespace moeplan::op
