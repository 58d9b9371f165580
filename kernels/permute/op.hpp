#pragma once
/// Copies each token's row once for every expert it chose, ordered by expert and then by token: [t, w] -> [t k, w]. `row_map` says
/// where copy j of token i went; `combine` reads it on the way back.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Permute {
  static constexpr std::string_view kind = "permute";

  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t width = 0;
  std::int64_t experts = 0;   ///< that the indices name

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Permute::tokens).at_least(0), field("top_k", &Permute::top_k, "copies a token").above(0),
                           field("width", &Permute::width, "columns").above(0), field("experts", &Permute::experts, "that the indices name").above(0));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"x", Role::input, {tokens, width}});
    o.push_back({"indices", Role::index, {tokens, top_k}, DType::i32});
    o.push_back({.name = "rows", .role = Role::output, .shape = {tokens * top_k, width}, .ragged = true});
    o.push_back({"row_map", Role::aux, {tokens, top_k}, DType::i32, for_input_grad});
    return o;
  }

  /// Backward: the copies' gradients are summed.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    return {pass == Pass::backward && wants.input_grad ? num(tokens) * num(top_k) * num(width) : 0};
  }

  static std::vector<Permute> cases() { return {{7, 2, 16, 4}, {5, 3, 9, 8}, {1, 1, 4, 1}, {0, 2, 8, 4}}; }

  bool operator==(const Permute&) const = default;
};

}  // namespace moeplan::op
