#pragma once
/// One optimizer step over a shard: reads the gradient, updates float master weights and moments in place, writes the weights.
/// `adamw8bit` holds both moments as bytes with one float scale in 256; `muon` has one momentum and orthogonalises each
/// rows x columns matrix by five Newton-Schulz steps.

#include <vector>

#include "core/spec/workload.hpp"
#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct AdamW {
  static constexpr std::string_view kind = "adamw";

  std::int64_t elements = 0;
  OptimizerKind optimizer = OptimizerKind::adamw;
  DType gradient = DType::f32;
  DType weight = DType::bf16;
  std::int64_t rows = 0, columns = 0;   ///< muon: the matrices' shape
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("elements", &AdamW::elements, "parameters of the shard").at_least(0), field("optimizer", &AdamW::optimizer),
                           field("gradient", &AdamW::gradient, "type of the gradient"), field("weight", &AdamW::weight, "type of the weights written"),
                           field("rows", &AdamW::rows, "muon: of a matrix").at_least(0), field("columns", &AdamW::columns, "muon: of a matrix").at_least(0),
                           field("beta1", &AdamW::beta1).between(0, 1), field("beta2", &AdamW::beta2).between(0, 1), field("epsilon", &AdamW::epsilon).at_least(0),
                           field("weight_decay", &AdamW::weight_decay).at_least(0));
  }

  /// Inputs without a gradient, then what is written; state outputs overwrite the inputs of the same name.
  [[nodiscard]] Operands operands() const {
    const bool bytes = optimizer == OptimizerKind::adamw8bit, second = optimizer != OptimizerKind::muon;
    const DType moment = bytes ? DType::u8 : DType::f32;
    const Shape scales{(elements + 255) / 256};
    Operands o;
    o.push_back({"gradient", Role::index, {elements}, gradient});
    o.push_back({"step_size", Role::index, {3}, DType::f32});   // learning rate, clipping factor, step count
    const auto state = [&](Role role) {
      o.push_back({"master", role, {elements}, DType::f32});
      o.push_back({"m", role, {elements}, moment});
      if (bytes) o.push_back({"m_scale", role, scales, DType::f32});
      if (second) o.push_back({"v", role, {elements}, moment});
      if (second && bytes) o.push_back({"v_scale", role, scales, DType::f32});
    };
    state(Role::index);
    state(Role::aux);
    o.push_back({"weight", Role::aux, {elements}, weight});
    return o;
  }

  /// About 15 operations a parameter; muon 4, and 5 steps of 4 m^2 n + 2 m^3 for m x n matrices (m <= n).
  [[nodiscard]] Flops flops(Pass pass, Wants) const {
    if (pass == Pass::backward) return {0};
    if (optimizer != OptimizerKind::muon) return {15 * num(elements)};
    const double m = num(std::min(rows, columns)), n = num(std::max(rows, columns));
    const double matrices = m > 0 ? num(elements) / (m * n) : 0;
    return {4 * num(elements) + matrices * 5 * (4 * m * m * n + 2 * m * m * m)};
  }

  /// Muon: the matrix and its Gram products, in bf16.
  [[nodiscard]] Bytes workspace(Pass pass, Wants) const {
    if (pass == Pass::backward || optimizer != OptimizerKind::muon) return {0};
    const std::int64_t m = std::min(rows, columns);
    return {2 * (2 * rows * columns + 2 * m * m)};
  }

  static std::vector<AdamW> cases() {
    return {{7}, {1025, OptimizerKind::adamw, DType::bf16}, {300, OptimizerKind::adamw8bit}, {48, OptimizerKind::muon, DType::f32, DType::bf16, 6, 8}, {0}};
  }

  bool operator==(const AdamW&) const = default;
};

}  // namespace moeplan::op
