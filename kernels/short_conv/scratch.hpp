#pragma once
/// What short_conv's backward pass holds beside its operands on the GPU where the taps are trained: shared by the kernel's host side and the planner's account.

#include "kernels/short_conv/op.hpp"

namespace moeplan::short_conv {

/// Taps that the kernels hold, and the most tokens that a block takes with dw.
inline constexpr int most_taps = 4, training_chunk = 257;

/// f32 [chunks, taps and bias, channels]: what each block adds to dw and db.
[[nodiscard]] constexpr std::int64_t scratch(const op::ShortConv& op, Pass pass, Wants wants) {
  if (pass == Pass::forward || !wants.weight_grad || op.training != Training::full) return 0;
  return 4 * (most_taps + 1) * op.channels * ((op.tokens + training_chunk - 1) / training_chunk);
}

}  // namespace moeplan::short_conv
