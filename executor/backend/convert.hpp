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

/// Numbers of one byte: E4M3 and E5M2, and E8M0 (a power of two). Of four bits: E2M1.
[[nodiscard]] float from_e4m3(std::uint8_t bits);
[[nodiscard]] float from_e5m2(std::uint8_t bits);
[[nodiscard]] float from_e8m0(std::uint8_t bits);
[[nodiscard]] float from_e2m1(std::uint8_t nibble);

/// `n` elements of a plain type (f32, bf16, f16, i32, i64, u8) to floats and back. Integers beyond 2^24 are not exact.
void to_floats(DType type, const std::byte* from, std::span<float> to);
void from_floats(DType type, std::span<const float> from, std::byte* to);

/// Bytes of an element of a plain type; 0 for block-quantised ones.
[[nodiscard]] std::int64_t plain_bytes(DType type);

}  // namespace moeplan
