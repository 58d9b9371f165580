#pragma once
/// y = f(gate) * up with x = [gate | up]: SwiGLU, GeGLU, SiTU-GLU (K3) and gpt-oss's clamped form.
///   silu, gelu, relu2   y = f(g) u
///   situ                y = beta tanh(g / beta) sigmoid(g) * lambda tanh(u / lambda), beta 4, lambda 25
///   clamped_swiglu      g' = min(g, limit), u' = clamp(u, -limit, limit); y = g' sigmoid(alpha g') (u' + offset); gpt-oss: alpha 1.702,
///                       limit 7, offset 1; DeepSeek-V4, GLM-5.3-Flash: alpha 1, limit 10, offset 0

#include <vector>

#include "core/spec/model.hpp"
#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Glu {
  static constexpr std::string_view kind = "glu";

  std::int64_t tokens = 0;         ///< rows: tokens, or routed copies
  std::int64_t intermediate = 0;
  Activation activation = Activation::silu;
  bool interleaved = false;        ///< x = [g0 u0 g1 u1 ...] (gpt-oss)
  bool ragged = false;             ///< rows follow the routing
  double beta = 4, linear_beta = 25;   ///< situ
  double alpha = 1.702, limit = 7, up_offset = 1;   ///< clamped_swiglu

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Glu::tokens, "rows").at_least(0), field("intermediate", &Glu::intermediate, "columns of y").above(0),
                           field("activation", &Glu::activation), field("interleaved", &Glu::interleaved, "gate and up columns alternate"),
                           field("ragged", &Glu::ragged, "rows follow the routing"), field("beta", &Glu::beta, "situ: bound of the gate").above(0),
                           field("linear_beta", &Glu::linear_beta, "situ: bound of the up part").above(0),
                           field("alpha", &Glu::alpha, "clamped_swiglu: slope in the sigmoid"), field("limit", &Glu::limit, "clamped_swiglu").above(0),
                           field("up_offset", &Glu::up_offset, "clamped_swiglu: added to the up part"));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({.name = "x", .role = Role::input, .shape = {tokens, 2 * intermediate}, .need = for_input_grad, .ragged = ragged});
    o.push_back({.name = "y", .role = Role::output, .shape = {tokens, intermediate}, .ragged = ragged});
    return o;
  }

  /// About 6 operations an output element forward and 12 backward (transcendentals count as one); memory-bound.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    if (pass == Pass::backward && !wants.input_grad) return {0};
    return {(pass == Pass::forward ? 6.0 : 12.0) * num(tokens) * num(intermediate)};
  }

  static std::vector<Glu> cases() {
    return {{5, 32}, {3, 17, Activation::gelu}, {4, 24, Activation::situ}, {6, 9, Activation::clamped_swiglu, true, false, 4, 25, 1.702, 0.7}, {4, 12, Activation::clamped_swiglu, false, false, 4, 25, 1, 0.7, 0}, {2, 8, Activation::relu2, false, true}, {0, 16}};
  }

  bool operator==(const Glu&) const = default;
};

}  // namespace moeplan::op
