#pragma once
/// What a block-quantised type makes of plain numbers: each is divided by its block's scale, moved to the nearest value the type has
/// (ties to even), and multiplied back. Layouts and scales as `DType` documents them.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/dtype.hpp"

namespace moeplan::reference {

/// Nearest float with `mantissa` fraction bits, smallest normal exponent `least`, largest value `most`.
[[nodiscard]] inline double nearest_float(double x, int mantissa, int least, double most) {
  if (x == 0) return 0;
  const int exponent = std::max(std::ilogb(x), least);
  const double unit = std::ldexp(1.0, exponent - mantissa);
  return std::clamp(std::nearbyint(x / unit) * unit, -most, most);
}

/// The sixteen values of QLoRA's NormalFloat (Dettmers et al. 2023, appendix E).
inline constexpr std::array normal_float{-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                                         -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                                         0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0};

/// One number at its block's largest magnitude `most`.
[[nodiscard]] inline double quantised(DType type, double x, double most) {
  if (most == 0) return 0;
  switch (type) {
    case DType::fp8: return nearest_float(x / (most / 448), 3, -6, 448) * (most / 448);
    case DType::mxfp4: {   // scale 2^(floor(log2 most) - 2): the largest E2M1 exponent is 2
      const double scale = std::exp2(std::floor(std::log2(most)) - 2);
      return nearest_float(x / scale, 1, 0, 6) * scale;
    }
    case DType::nvfp4: {
      const double scale = nearest_float(most / 6, 3, -6, 448);
      return scale == 0 ? 0 : nearest_float(x / scale, 1, 0, 6) * scale;
    }
    case DType::int8: return std::nearbyint(x / (most / 127)) * (most / 127);
    case DType::int4: return std::nearbyint(x / (most / 7)) * (most / 7);
    case DType::nf4: {
      const auto nearer = [&](double a, double b) { return std::abs(a - x / most) < std::abs(b - x / most); };
      return *std::min_element(normal_float.begin(), normal_float.end(), nearer) * most;
    }
    default: return x;
  }
}

/// Columns (and for fp8 rows) that share a scale.
[[nodiscard]] inline std::int64_t block_columns(DType type, std::int64_t columns) {
  switch (type) {
    case DType::fp8: return 128;
    case DType::mxfp4: case DType::int4: return 32;
    case DType::nvfp4: return 16;
    case DType::nf4: return 64;
    default: return columns;
  }
}

}  // namespace moeplan::reference
