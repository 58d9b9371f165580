#pragma once
/// What a call of `grouped_linear` holds beside its operands on the GPU, and where: shared by the kernels' host side and the planner's account.

#include <algorithm>

#include "kernels/grouped_linear/op.hpp"

namespace moeplan::kernels::grouped_linear {

/// MXFP4 and FP8 are read inside the product where their kernels take the widths.
[[nodiscard]] inline bool reads_packed(const op::GroupedLinear& op) {
  return op.in % 64 == 0 && ((op.weight == DType::mxfp4 && op.out % 64 == 0) || (op.weight == DType::fp8 && op.out % 128 == 0));
}

/// Whether the product itself expands them. Only Hopper's does; and from so many rows an expert FP8 is read back to bf16 first all the same: expanding it anew for every 128 rows takes longer than once for all
/// (64 experts of 7168 x 4096 and 1024 rows on an H200: dx 9.2 ms inside, 5.6 + 1.4 read back, forward 7.0 and 5.7 + 1.4, but of 2048 x 7168 3.7
/// and 2.7 + 0.8; bench/results/moe_h200.md).
[[nodiscard]] inline bool expands_inside(const op::GroupedLinear& op, Pass pass, bool hopper) {
  return hopper && reads_packed(op) && (op.weight != DType::fp8 || op.rows <= (pass == Pass::forward ? 768 : 384) * op.experts);
}

/// Weights that are read back to bf16 are so some experts at a time: as many as this holds, at least one.
inline constexpr std::int64_t kWaveBytes = std::int64_t{512} << 20;
[[nodiscard]] inline std::int64_t wave_experts(const op::GroupedLinear& op) {
  return op.weight == DType::bf16 ? op.experts : std::clamp<std::int64_t>(kWaveBytes / (2 * op.in * op.out), 1, op.experts);
}

/// Pieces in bytes from the start. `ends`: of all rows as one expert's, and the counter that deals tiles. `low`: the scaled low-rank rows; `beside`: a low-rank product that the base product cannot take in;
/// `plain`: the experts of a wave in bf16. Plans count Hopper's.
struct Scratch {
  std::int64_t offsets = 0, ends = 0, low = 0, scales = 0, beside = 0, plain = 0, bytes = 0;
};

[[nodiscard]] inline Scratch scratch_of(const op::GroupedLinear& op, Pass pass, Wants wants, bool hopper = true) {
  Scratch s;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t here = s.bytes;
    s.bytes += (bytes + 255) / 256 * 256;
    return here;
  };
  const bool packed = expands_inside(op, pass, hopper), gradient_through = pass == Pass::forward || wants.input_grad;
  s.offsets = take(4 * (op.experts + 1)), s.ends = take(12);
  if (op.lora_rank > 0 && (pass == Pass::backward || op.lora_scale != 1)) s.low = take(2 * op.rows * op.lora_rank);
  const bool four_bits = packed && op.weight == DType::mxfp4;
  if (four_bits && gradient_through) s.scales = take(op.experts * op.out * (op.in / 32));
  if (four_bits && gradient_through && op.lora_rank > 0) s.beside = take(2 * op.rows * (pass == Pass::forward ? op.out : op.in));
  if (op.weight != DType::bf16 && !packed && gradient_through) s.plain = take(2 * wave_experts(op) * op.in * op.out);
  return s;
}

}  // namespace moeplan::kernels::grouped_linear
