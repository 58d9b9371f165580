#include "executor/backend/convert.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace moeplan {
namespace {

template <class T, class F>
void each(const std::byte* from, std::span<float> to, F&& convert) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T x;
    std::memcpy(&x, from + i * sizeof(T), sizeof(T));
    to[i] = convert(x);
  }
}

template <class T, class F>
void each(std::span<const float> from, std::byte* to, F&& convert) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const T x = convert(from[i]);
    std::memcpy(to + i * sizeof(T), &x, sizeof(T));
  }
}

template <class T>
auto number() { return [](T x) { return static_cast<float>(x); }; }
template <class T>
auto whole() { return [](float x) { return static_cast<T>(std::isfinite(x) ? x : 0.0f); }; }

}  // namespace

std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t to_f16(float x) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float a = std::abs(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>(sign | 0x7e00);
  if (a >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (a == 0) return sign;
  const int exponent = std::max(std::ilogb(a), -14);
  // Ten fraction bits; nearbyint rounds ties to even. A carry into the next exponent comes out right by addition.
  const auto fraction = static_cast<int>(std::nearbyint(std::ldexp(a, 10 - exponent)));
  return static_cast<std::uint16_t>(sign + (fraction < 1024 ? fraction : ((exponent + 14) << 10) + fraction));
}

float from_f16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float x = 0;
  if (exponent == 31) x = fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  else x = exponent ? std::ldexp(static_cast<float>(1024 + fraction), exponent - 25) : std::ldexp(static_cast<float>(fraction), -24);
  return bits & 0x8000 ? -x : x;
}

float from_e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<float>::quiet_NaN();
  const float x = exponent ? std::ldexp(static_cast<float>(8 + fraction), exponent - 10) : std::ldexp(static_cast<float>(fraction), -9);
  return bits & 0x80 ? -x : x;
}

float from_e5m2(std::uint8_t bits) { return from_f16(static_cast<std::uint16_t>(bits << 8)); }

float from_e8m0(std::uint8_t bits) { return bits == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, static_cast<int>(bits) - 127); }

float from_e2m1(std::uint8_t nibble) {
  constexpr std::array values{0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return nibble & 8 ? -values[nibble & 7] : values[nibble & 7];
}

void to_floats(DType type, const std::byte* from, std::span<float> to) {
  switch (type) {
    case DType::f32: std::memcpy(to.data(), from, to.size_bytes()); return;
    case DType::bf16: each<std::uint16_t>(from, to, from_bf16); return;
    case DType::f16: each<std::uint16_t>(from, to, from_f16); return;
    case DType::i32: each<std::int32_t>(from, to, number<std::int32_t>()); return;
    case DType::i64: each<std::int64_t>(from, to, number<std::int64_t>()); return;
    case DType::u8: each<std::uint8_t>(from, to, number<std::uint8_t>()); return;
    default: throw std::logic_error("to_floats: a block-quantised type");
  }
}

void from_floats(DType type, std::span<const float> from, std::byte* to) {
  switch (type) {
    case DType::f32: std::memcpy(to, from.data(), from.size_bytes()); return;
    case DType::bf16: each<std::uint16_t>(from, to, to_bf16); return;
    case DType::f16: each<std::uint16_t>(from, to, to_f16); return;
    case DType::i32: each<std::int32_t>(from, to, whole<std::int32_t>()); return;
    case DType::i64: each<std::int64_t>(from, to, whole<std::int64_t>()); return;
    case DType::u8: each<std::uint8_t>(from, to, whole<std::uint8_t>()); return;
    default: throw std::logic_error("from_floats: a block-quantised type");
  }
}

std::int64_t plain_bytes(DType type) {
  switch (type) {
    case DType::f32: case DType::i32: return 4;
    case DType::bf16: case DType::f16: return 2;
    case DType::i64: return 8;
    case DType::u8: return 1;
    default: return 0;
  }
}

}  // namespace moeplan
