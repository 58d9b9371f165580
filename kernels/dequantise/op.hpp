#pragma once
/// Reads a block-quantised matrix back into bf16 or f32, before a product that cannot read the stored form.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Dequantise {
  static constexpr std::string_view kind = "dequantise";

  std::int64_t rows = 0, columns = 0;
  DType from = DType::fp8, to = DType::bf16;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("rows", &Dequantise::rows).at_least(0), field("columns", &Dequantise::columns).above(0), field("from", &Dequantise::from), field("to", &Dequantise::to));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"x", Role::index, {rows, columns}, from});
    o.push_back({"y", Role::aux, {rows, columns}, to});
    return o;
  }

  /// A scale's search or product: 2 operations an element.
  [[nodiscard]] Flops flops(Pass pass, Wants) const { return {pass == Pass::forward ? 2 * num(rows) * num(columns) : 0}; }

  static std::vector<Dequantise> cases() { return {{4, 64}, {33, 96, DType::mxfp4}, {130, 257}, {2, 128, DType::nf4, DType::f32}, {3, 64, DType::int4}, {0, 64}}; }

  bool operator==(const Dequantise&) const = default;
};

}  // namespace moeplan::op
