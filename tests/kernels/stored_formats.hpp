/// \file
/// Block-quantised storage read on the host, written from the formats' definitions and not from the kernels: E4M3 and E2M1 by their fields,
/// E8M0 as a power of two, payload row by row and the scales behind it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/quantise/rounding.hpp"
#include "tests/kernels/device_call.hpp"

namespace moeplan::test {

inline double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 128) != 0 ? -value : value;
}
inline double e2m1(int code) {
  constexpr double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -values[code & 7] : values[code & 7];
}

/// Where payload and scales of a stored matrix are.
struct StoredMatrix {
  DType type;
  std::int64_t rows, columns;
  const Raw& raw;

  [[nodiscard]] bool nibbles() const { return type == DType::mxfp4 || type == DType::nvfp4 || type == DType::int4; }
  [[nodiscard]] std::int64_t wide() const { return reference::block_columns(type, columns); }
  [[nodiscard]] std::int64_t payload() const { return rows * (nibbles() ? (columns + 1) / 2 : columns); }

  [[nodiscard]] double scale(std::int64_t row, std::int64_t column) const {
    const std::int64_t across = (columns + wide() - 1) / wide(), block = (type == DType::fp8 ? row / 128 : row) * across + column / wide();
    const std::uint8_t* at = raw.data() + payload();
    const auto two = [&] { return static_cast<std::uint32_t>(at[2 * block] | at[2 * block + 1] << 8) << 16; };   // bf16 as the upper half of f32
    std::uint32_t bits = 0;
    float value = 0;
    switch (type) {
      case DType::fp8: std::memcpy(&value, at + 4 * block, 4); return static_cast<double>(value);
      case DType::mxfp4: return std::ldexp(1.0, at[block] - 127);
      case DType::nvfp4: return e4m3(at[block]);
      default: bits = two(); std::memcpy(&value, &bits, 4); return static_cast<double>(value);
    }
  }
  [[nodiscard]] double value(std::int64_t row, std::int64_t column) const {
    const int byte = raw[static_cast<std::size_t>(nibbles() ? row * ((columns + 1) / 2) + column / 2 : row * columns + column)], nibble = column % 2 == 0 ? byte & 15 : byte >> 4;
    switch (type) {
      case DType::fp8: return e4m3(byte) * scale(row, column);
      case DType::int8: return static_cast<std::int8_t>(byte) * scale(row, column);
      case DType::int4: return (nibble - 8) * scale(row, column);
      default: return e2m1(nibble) * scale(row, column);
    }
  }
};

inline std::vector<double> decoded(const Operand& o, const Raw& raw) {
  const StoredMatrix matrix{o.dtype, o.shape[0], o.shape[1], raw};
  std::vector<double> out;
  for (std::int64_t r = 0; r < matrix.rows; ++r)
    for (std::int64_t c = 0; c < matrix.columns; ++c) out.push_back(matrix.value(r, c));
  return out;
}

/// Any codes under scales of ordinary size; no NaN codes.
inline Raw random_stored(const Operand& o) {
  Raw raw(static_cast<std::size_t>(o.bytes().value));
  std::mt19937 random(5);
  const StoredMatrix matrix{o.dtype, o.shape[0], o.shape[1], raw};
  const auto payload = static_cast<std::size_t>(matrix.payload());
  for (std::size_t i = 0; i < raw.size(); ++i) {
    raw[i] = static_cast<std::uint8_t>(random() & 255);
    if (i < payload && o.dtype == DType::fp8 && (raw[i] & 127) == 127) raw[i] = 1;
    if (i < payload) continue;
    if (o.dtype == DType::mxfp4) raw[i] = static_cast<std::uint8_t>(107 + raw[i] % 40);
    if (o.dtype == DType::nvfp4) raw[i] = static_cast<std::uint8_t>(raw[i] % 120);
  }
  const auto scales = [&](auto one, std::size_t bytes) {
    for (std::size_t at = payload; at + bytes <= raw.size(); at += bytes) {
      const auto value = one(0.01f + static_cast<float>(random() % 1000) / 500.0f);
      std::memcpy(raw.data() + at, &value, bytes);
    }
  };
  if (o.dtype == DType::fp8) scales([](float v) { return v; }, 4);
  if (o.dtype == DType::int8 || o.dtype == DType::int4) scales([](float v) { return __float2bfloat16(v); }, 2);
  return raw;
}

/// Every number is as near to its original as the reference brings it, but for how far a stored scale is rounded; the scales are the reference's.
inline void expect_quantised(const Operand& x, const Operand& y, const std::vector<double>& values, const Raw& raw, const std::string& what) {
  const StoredMatrix matrix{y.dtype, y.shape[0], y.shape[1], raw};
  const bool rounded_scale = y.dtype == DType::int8 || y.dtype == DType::int4;
  const std::int64_t tall = y.dtype == DType::fp8 ? 128 : 1, wide = matrix.wide(), rows = x.shape[0], columns = x.shape[1];
  int wrong = 0;
  for (std::int64_t r0 = 0; r0 < rows; r0 += tall)
    for (std::int64_t c0 = 0; c0 < columns; c0 += wide) {
      double most = 0;
      const auto for_each = [&](auto&& f) {
        for (std::int64_t r = r0; r < std::min(r0 + tall, rows); ++r)
          for (std::int64_t c = c0; c < std::min(c0 + wide, columns); ++c) f(r, c, values[static_cast<std::size_t>(r * columns + c)]);
      };
      for_each([&](std::int64_t, std::int64_t, double v) { most = std::max(most, std::abs(v)); });
      for_each([&](std::int64_t r, std::int64_t c, double v) {
        const double best = reference::quantised(y.dtype, v, most), got = matrix.value(r, c), slack = most * (rounded_scale ? 1.0 / 256 : 1e-5);
        if (std::abs(got - v) <= std::abs(best - v) + slack || wrong > 2) return;   // false for NaN
        ADD_FAILURE() << what << "[" << r << ", " << c << "] of " << v << " is " << got << ", the reference has " << best << ", largest of the block " << most;
        ++wrong;
      });
    }
  if (raw.empty()) return;
  if (y.dtype == DType::mxfp4) {   // powers of two leave no freedom: the codes are the reference's
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        double most = 0;
        for (std::int64_t i = c / wide * wide; i < std::min(c / wide * wide + wide, columns); ++i) most = std::max(most, std::abs(values[static_cast<std::size_t>(r * columns + i)]));
        ASSERT_EQ(matrix.value(r, c), reference::quantised(y.dtype, values[static_cast<std::size_t>(r * columns + c)], most)) << what << "[" << r << ", " << c << "]";
      }
  }
}

}  // namespace moeplan::test
