#pragma once
/// What a call of `grouped_linear` holds beside its operands on the GPU, and where: shared by the kernels' host side and the planner's account.

#include <algorithm>

#include "kernels/grouped_linear/op.hpp"

namespace moeplan::kernels::grouped_linear {

/// MXFP4 is read inside the product where its kernels take the widths.
[[nodiscard]] inline bool reads_packed(const op::GroupedLinear& op) { return op.weight == DType::mxfp4 && op.in % 64 == 0 && op.out % 64 == 0; }

/// Weights stored otherwise are read back to bf16 some experts at a time: as many as this holds, at least one.
inline constexpr std::int64_t kWaveBytes = std::int64_t{512} << 20;
[[nodiscard]] inline std::int64_t wave_experts(const op::GroupedLinear& op) {
  if (op.weight == DType::bf16 || reads_packed(op)) return op.experts;
  return std::clamp<std::int64_t>(kWaveBytes / (2 * op.in * op.out), 1, op.experts);
}

/// Pieces in bytes from the start. `low`: the scaled low-rank rows; `beside`: a low-rank product that the base product cannot take in;
/// `plain`: the experts of a wave in bf16.
struct Scratch {
  std::int64_t offsets = 0, ends = 0, low = 0, scales = 0, beside = 0, plain = 0, bytes = 0;
};

[[nodiscard]] inline Scratch scratch_of(const op::GroupedLinear& op, Pass pass, Wants wants) {
  Scratch s;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t here = s.bytes;
    s.bytes += (bytes + 255) / 256 * 256;
    return here;
  };
  const bool packed = reads_packed(op), gradient_through = pass == Pass::forward || wants.input_grad;
  s.offsets = take(4 * (op.experts + 1)), s.ends = take(8);
  if (op.lora_rank > 0 && (pass == Pass::backward || op.lora_scale != 1)) s.low = take(2 * op.rows * op.lora_rank);
  if (packed && gradient_through) s.scales = take(op.experts * op.out * (op.in / 32));
  if (packed && gradient_through && op.lora_rank > 0) s.beside = take(2 * op.rows * (pass == Pass::forward ? op.out : op.in));
  if (op.weight != DType::bf16 && !packed && gradient_through) s.plain = take(2 * wave_experts(op) * op.in * op.out);
  return s;
}

}  // namespace moeplan::kernels::grouped_linear
