#include "executor/backend/stored.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "core/checked.hpp"
#include "executor/backend/convert.hpp"

namespace moeplan {
namespace {

/// A stack of matrices as rows, and how many of these one matrix has.
struct Rows {
  std::int64_t columns = 0, rows = 0, matrix = 0;
  explicit Rows(const Shape& shape)
      : columns(shape[shape.rank - 1]), rows(columns ? shape.elements() / columns : 0), matrix(shape.rank > 1 ? shape[shape.rank - 2] : 1) {}
};

/// E4M3, nearest, ties to even, at most 448.
std::uint8_t to_e4m3(float v) {
  const std::uint8_t sign = std::signbit(v) ? 0x80 : 0;
  const float a = std::abs(v);
  if (std::isnan(v)) return static_cast<std::uint8_t>(sign | 0x7f);
  if (a >= 448.0f) return static_cast<std::uint8_t>(sign | 0x7e);
  if (a == 0) return sign;
  const int exponent = std::max(std::ilogb(a), -6);
  // Three fraction bits; a carry into the next exponent comes out right by addition.
  const int fraction = static_cast<int>(std::nearbyint(std::ldexp(a, 3 - exponent)));
  return static_cast<std::uint8_t>(sign + (fraction < 8 ? fraction : ((exponent + 6) << 3) + fraction));
}

/// E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6; ties to the even code.
std::uint8_t to_e2m1(float v) {
  constexpr float halves[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};   // between code i and i + 1
  const float a = std::abs(v);
  std::uint8_t code = 0;
  while (code < 7 && (a > halves[code] || (a == halves[code] && code % 2 == 1))) ++code;
  return static_cast<std::uint8_t>(code | (v < 0 ? 8 : 0));
}

constexpr std::int64_t kTile = 128, kGroup = 32;

/// f(index of the scale, first row, rows, first column, columns) for every tile of every matrix.
template <class F>
void each_tile(const Rows& r, const F& f) {
  std::int64_t scale = 0;
  for (std::int64_t first = 0; first < r.rows; first += r.matrix)
    for (std::int64_t row = 0; row < r.matrix; row += kTile)
      for (std::int64_t column = 0; column < r.columns; column += kTile)
        f(scale++, first + row, std::min(kTile, r.matrix - row), column, std::min(kTile, r.columns - column));
}

}  // namespace

bool can_be_held_stored(DType type) { return type == DType::fp8 || type == DType::mxfp4; }

std::int64_t payload_bytes(DType type, const Shape& shape) {
  const Rows r(shape);
  return type == DType::fp8 ? shape.elements() : r.rows * ceil_div(r.columns, 2);
}

void decode_stored(DType type, const Shape& shape, const std::byte* from, std::span<float> to) {
  const Rows r(shape);
  const std::byte* const scales = from + payload_bytes(type, shape);
  if (type == DType::fp8) {
    each_tile(r, [&](std::int64_t at, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
      float scale = 0;
      std::memcpy(&scale, scales + 4 * at, 4);
      for (std::int64_t i = row; i < row + rows; ++i)
        for (std::int64_t c = column; c < column + columns; ++c)
          to[static_cast<std::size_t>(i * r.columns + c)] = from_e4m3(static_cast<std::uint8_t>(from[i * r.columns + c])) * scale;
    });
    return;
  }
  if (type != DType::mxfp4) throw std::logic_error("decode_stored: another type");
  const std::int64_t packed = ceil_div(r.columns, 2), groups = ceil_div(r.columns, kGroup);
  for (std::int64_t i = 0; i < r.rows; ++i)
    for (std::int64_t c = 0; c < r.columns; ++c) {
      const auto byte = static_cast<std::uint8_t>(from[i * packed + c / 2]);
      to[static_cast<std::size_t>(i * r.columns + c)] =
          from_e2m1(c % 2 ? byte >> 4 : byte & 15) * from_e8m0(static_cast<std::uint8_t>(scales[i * groups + c / kGroup]));
    }
}

void encode_stored(DType type, const Shape& shape, std::span<const float> from, std::byte* to) {
  const Rows r(shape);
  std::byte* const scales = to + payload_bytes(type, shape);
  const auto value = [&](std::int64_t row, std::int64_t column) { return from[static_cast<std::size_t>(row * r.columns + column)]; };
  if (type == DType::fp8) {
    each_tile(r, [&](std::int64_t at, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
      float most = 0;
      for (std::int64_t i = row; i < row + rows; ++i)
        for (std::int64_t c = column; c < column + columns; ++c) most = std::max(most, std::abs(value(i, c)));
      const float scale = most / 448.0f, inverse = scale >= 1.17549435e-38f ? 1.0f / scale : 0.0f;
      std::memcpy(scales + 4 * at, &scale, 4);
      for (std::int64_t i = row; i < row + rows; ++i)
        for (std::int64_t c = column; c < column + columns; ++c) to[i * r.columns + c] = static_cast<std::byte>(to_e4m3(value(i, c) * inverse));
    });
    return;
  }
  if (type != DType::mxfp4) throw std::logic_error("encode_stored: another type");
  const std::int64_t packed = ceil_div(r.columns, 2), groups = ceil_div(r.columns, kGroup);
  for (std::int64_t i = 0; i < r.rows; ++i)
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t end = std::min(r.columns, (g + 1) * kGroup);
      float most = 0;
      for (std::int64_t c = g * kGroup; c < end; ++c) most = std::max(most, std::abs(value(i, c)));
      const std::uint32_t exponent = std::bit_cast<std::uint32_t>(most) >> 23, bits = exponent > 2 ? exponent - 2 : 0;
      const float inverse = std::bit_cast<float>((254u - bits) << 23);
      scales[i * groups + g] = static_cast<std::byte>(bits);
      for (std::int64_t c = g * kGroup; c < end; c += 2) {
        const unsigned low = to_e2m1(value(i, c) * inverse), high = c + 1 < end ? to_e2m1(value(i, c + 1) * inverse) : 0u;
        to[i * packed + c / 2] = static_cast<std::byte>(low | high << 4);
      }
    }
}

}  // namespace moeplan
