#pragma once
/// Changes the type of activations or gradients between f32, bf16 and f16; the gradient passes, cast back.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Cast {
  static constexpr std::string_view kind = "cast";

  std::int64_t rows = 0, columns = 0;
  DType from = DType::f32, to = DType::bf16;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("rows", &Cast::rows).at_least(0), field("columns", &Cast::columns).above(0), field("from", &Cast::from, "f32, bf16 or f16"),
                           field("to", &Cast::to, "f32, bf16 or f16"));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"x", Role::input, {rows, columns}, from});
    o.push_back({"y", Role::output, {rows, columns}, to});
    return o;
  }

  [[nodiscard]] Flops flops(Pass, Wants) const { return {0}; }

  static std::vector<Cast> cases() { return {{3, 17}, {5, 8, DType::bf16, DType::f32}, {2, 9, DType::f16, DType::bf16}, {0, 4}}; }

  bool operator==(const Cast&) const = default;
};

}  // namespace moeplan::op
