#pragma once
/// y = f(x) element by element: the feed-forward without a gate (relu^2 of Nemotron, gelu of GPT-3), the sigmoid of KDA's step size.

#include <vector>

#include "core/spec/model.hpp"
#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

enum class Function : std::uint8_t { silu, gelu, relu2, sigmoid, tanh };

}  // namespace moeplan::op

namespace moeplan {

template <>
struct EnumNames<op::Function> {
  static constexpr std::array names{std::pair{op::Function::silu, std::string_view("silu")}, std::pair{op::Function::gelu, std::string_view("gelu")},
                                    std::pair{op::Function::relu2, std::string_view("relu2")},
                                    std::pair{op::Function::sigmoid, std::string_view("sigmoid")}, std::pair{op::Function::tanh, std::string_view("tanh")}};
};

}  // namespace moeplan

namespace moeplan::op {

/// The function of a feed-forward without a gate; situ and clamped_swiglu exist only gated and fall back to their silu.
[[nodiscard]] constexpr Function function_of(Activation activation) {
  switch (activation) {
    case Activation::gelu: return Function::gelu;
    case Activation::relu2: return Function::relu2;
    default: return Function::silu;
  }
}

struct Activate {
  static constexpr std::string_view kind = "activation";

  std::int64_t tokens = 0;
  std::int64_t width = 0;
  Function function = Function::silu;
  DType output = DType::bf16;      ///< f32 for what a recurrence reads (KDA's step size)
  bool ragged = false;             ///< rows follow the routing

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Activate::tokens, "rows").at_least(0), field("width", &Activate::width, "columns").above(0),
                           field("function", &Activate::function), field("output", &Activate::output, "type of y"),
                           field("ragged", &Activate::ragged, "rows follow the routing"));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({.name = "x", .role = Role::input, .shape = {tokens, width}, .need = for_input_grad, .ragged = ragged});
    o.push_back({.name = "y", .role = Role::output, .shape = {tokens, width}, .dtype = output, .ragged = ragged});
    return o;
  }

  /// About 4 operations an element forward and 6 backward; memory-bound.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    if (pass == Pass::backward && !wants.input_grad) return {0};
    return {(pass == Pass::forward ? 4.0 : 6.0) * num(tokens) * num(width)};
  }

  static std::vector<Activate> cases() {
    return {{5, 32}, {3, 17, Function::gelu}, {4, 24, Function::relu2}, {7, 3, Function::sigmoid, DType::f32}, {2, 9, Function::tanh}, {0, 16}};
  }

  bool operator==(const Activate&) const = default;
};

}  // namespace moeplan::op
