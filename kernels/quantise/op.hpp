#pragma once
/// Stores a matrix block-quantised (fp8 blocks, mxfp4, nvfp4, int8, int4, nf4), scales included: frozen weights on loading, rows before an
/// exchange in fp8. No gradient passes.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Quantise {
  static constexpr std::string_view kind = "quantise";

  std::int64_t rows = 0, columns = 0;
  DType from = DType::bf16, to = DType::fp8;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("rows", &Quantise::rows).at_least(0), field("columns", &Quantise::columns).above(0), field("from", &Quantise::from), field("to", &Quantise::to));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"x", Role::index, {rows, columns}, from});
    o.push_back({"y", Role::aux, {rows, columns}, to});
    return o;
  }

  /// A scale's search or product: 2 operations an element.
  [[nodiscard]] Flops flops(Pass pass, Wants) const { return {pass == Pass::forward ? 2 * num(rows) * num(columns) : 0}; }

  static std::vector<Quantise> cases() { return {{4, 64}, {33, 96, DType::bf16, DType::mxfp4}, {130, 257}, {2, 128, DType::f32, DType::nf4}, {3, 64, DType::bf16, DType::int4}, {0, 64}}; }

  bool operator==(const Quantise&) const = default;
};

}  // namespace moeplan::op
