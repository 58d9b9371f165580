#pragma once
/// Block attention residuals (K3): y = sum_i p_i v_i over the running sum and the stored block inputs v_0 ... v_n, with
/// p = softmax_i(proj . (rms(v_i) * norm)) token by token. The stored blocks are ordinary values that many calls read; none is copied.

#include <array>
#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct AttentionResidual {
  static constexpr std::string_view kind = "attention_residual";
  static constexpr std::int64_t most_blocks = 16;

  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t blocks = 0;             ///< stored block inputs, besides the running sum
  Training training = Training::frozen;   ///< of norm and proj
  double epsilon = 1e-6;

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &AttentionResidual::tokens).at_least(0), field("hidden", &AttentionResidual::hidden).above(0),
                           field("blocks", &AttentionResidual::blocks, "stored block inputs").between(0, static_cast<double>(most_blocks)),
                           field("training", &AttentionResidual::training, "of norm and proj"), field("epsilon", &AttentionResidual::epsilon).above(0));
  }

  [[nodiscard]] Operands operands() const {
    static constexpr std::array<std::string_view, most_blocks> names{"block_0", "block_1", "block_2",  "block_3",  "block_4",  "block_5",  "block_6",  "block_7",
                                                                     "block_8", "block_9", "block_10", "block_11", "block_12", "block_13", "block_14", "block_15"};
    const bool full = training == Training::full;
    Operands o;
    o.push_back({"sum", Role::input, {tokens, hidden}, DType::bf16, for_any_grad});
    for (std::int64_t i = 0; i < blocks; ++i) o.push_back({names[static_cast<std::size_t>(i)], Role::input, {tokens, hidden}, DType::bf16, for_any_grad});
    o.push_back({"norm", Role::weight, {hidden}, DType::bf16, for_any_grad, full});
    o.push_back({"proj", Role::weight, {1, hidden}, DType::bf16, for_any_grad, full});
    o.push_back({"y", Role::output, {tokens, hidden}});
    o.push_back({"mix", Role::aux, {tokens, blocks + 1}, DType::f32, for_any_grad});
    o.push_back({"inverse_rms", Role::aux, {tokens, blocks + 1}, DType::f32, for_any_grad});
    return o;
  }

  /// An element of each stream: square, score and mix (6) forward; 14 backward. Memory-bound.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    if (pass == Pass::backward && wants == Wants{false, false}) return {0};
    return {(pass == Pass::forward ? 6.0 : 14.0) * num(tokens) * num(hidden) * num(blocks + 1)};
  }

  static std::vector<AttentionResidual> cases() {
    return {{3, 32, 2}, {5, 17, 1, Training::full}, {2, 24, 0, Training::full}, {1, 8, 8}, {0, 16, 3}};
  }

  bool operator==(const AttentionResidual&) const = default;
};

}  // namespace moeplan::op
