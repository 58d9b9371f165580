#pragma once
/// Between float and the types that tensors are held in.

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.hpp"

namespace moeplan {

/// Nearest bfloat16, ties to even; NaN stays NaN.
[[nodiscard]] std::uint16_t to_bf16(float x);
[[nodiscard]] float from_bf16(std::uint16_t bits);
[[nodiscard]] std::uint16_t to_f16(float x);
[[nodiscard]] float from_f16(std::uint16_t bits);

/// `n` elements of a plain type (f32, bf16, f16, i32, i64, u8) to floats and back. Integers beyond 2^24 are not exact.
void to_floats(DType type, const std::byte* from, std::span<float> to);
void from_floats(DType type, std::span<const float> from, std::byte* to);

/// Bytes of an element of a plain type; 0 for block-quantised ones.
[[nodiscard]] std::int64_t plain_bytes(DType type);

}  // namespace moeplan
