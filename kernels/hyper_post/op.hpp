#pragma once
/// Hyper-connections, after a sublayer: X'_i = sum_j mixing_ij X_j + post_i out (`mixes`: mHC); without mixing X'_i = X_i + post_i out.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct HyperPost {
  static constexpr std::string_view kind = "hyper_post";

  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t streams = 0;   ///< m
  bool mixes = true;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &HyperPost::tokens).at_least(0), field("hidden", &HyperPost::hidden).above(0),
                           field("streams", &HyperPost::streams, "m").above(0), field("mixes", &HyperPost::mixes, "the streams mix (mHC)"));
  }

  [[nodiscard]] Operands operands() const {
    const std::int64_t width = streams * hidden;
    Operands o;
    o.push_back({"streams", Role::input, {tokens, width}, DType::bf16, mixes ? for_input_grad : not_needed});
    o.push_back({"out", Role::input, {tokens, hidden}, DType::bf16, for_input_grad});
    o.push_back({"post", Role::input, {tokens, streams}, DType::f32, for_input_grad});
    if (mixes) o.push_back({"mixing", Role::input, {tokens, streams * streams}, DType::f32, for_input_grad});
    o.push_back({"y", Role::output, {tokens, width}});
    return o;
  }

  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    if (pass == Pass::backward && !wants.input_grad) return {0};
    const double n = num(tokens) * num(hidden) * num(streams), once = 2 * n * ((mixes ? num(streams) : 0) + 1);
    return {pass == Pass::forward ? once : 2 * once};
  }

  static std::vector<HyperPost> cases() { return {{3, 8, 4}, {5, 6, 2, false}, {2, 7, 3}, {0, 8, 4}}; }

  bool operator==(const HyperPost&) const = default;
};

}  // namespace moeplan::op
