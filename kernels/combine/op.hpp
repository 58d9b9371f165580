#pragma once
/// y_i = sum_j weights_ij rows[row_map_ij]: the experts' outputs return to their tokens: [t k, w] -> [t, w].
/// The rows are kept only if the weights need a gradient (`weights_grad`: a trained router, or a gradient through it).

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Combine {
  static constexpr std::string_view kind = "combine";

  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t width = 0;
  bool weights_grad = true;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Combine::tokens).at_least(0), field("top_k", &Combine::top_k, "rows a token").above(0),
                           field("width", &Combine::width, "columns").above(0), field("weights_grad", &Combine::weights_grad, "the weights get a gradient"));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({.name = "rows", .role = Role::input, .shape = {tokens * top_k, width}, .need = weights_grad ? for_input_grad : not_needed, .ragged = true});
    o.push_back({"weights", weights_grad ? Role::input : Role::index, {tokens, top_k}, DType::f32, for_input_grad});
    o.push_back({"row_map", Role::index, {tokens, top_k}, DType::i32, for_input_grad});
    o.push_back({"y", Role::output, {tokens, width}});
    return o;
  }

  /// 2 operations an element forward; backward one for the rows' gradient and two for the weights'.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double n = num(tokens) * num(top_k) * num(width);
    if (pass == Pass::forward) return {2 * n};
    return {wants.input_grad ? n + (weights_grad ? 2 * n : 0) : 0};
  }

  static std::vector<Combine> cases() { return {{7, 2, 16}, {5, 3, 9, false}, {1, 1, 4}, {0, 2, 8}}; }

  bool operator==(const Combine&) const = default;
};

}  // namespace moeplan::op
