#pragma once
/// Sum of squares of a shard of gradients, in float; the clipping factor follows once the ranks have summed theirs.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct GradNorm {
  static constexpr std::string_view kind = "grad_norm";

  std::int64_t elements = 0;
  DType gradient = DType::f32;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("elements", &GradNorm::elements, "gradients of the shard").at_least(0), field("gradient", &GradNorm::gradient, "type of the gradient"));
  }

  [[nodiscard]] Operands operands() const {
    Operands o;
    o.push_back({"gradient", Role::index, {elements}, gradient});
    o.push_back({"sum_of_squares", Role::aux, {1}, DType::f32});
    return o;
  }

  [[nodiscard]] Flops flops(Pass pass, Wants) const { return {pass == Pass::forward ? 2 * num(elements) : 0}; }

  static std::vector<GradNorm> cases() { return {{7}, {1025, DType::bf16}, {0}}; }

  bool operator==(const GradNorm&) const = default;
};

}  // namespace moeplan::op
