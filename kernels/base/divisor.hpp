#pragma once
/// Division of 32-bit numbers by one that does not change: a product, a sum and a shift instead of the device's twenty instructions
/// (Granlund and Montgomery 1994, figure 4.1, for dividends below 2^31, where the sum cannot overflow).

#include <cstdint>

namespace moeplan::cuda {

struct Divisor {
  std::uint32_t multiplier = 1, shift = 0;

  /// `by` from 1 to 2^31.
  [[nodiscard]] static constexpr Divisor of(std::uint32_t by) {
    std::uint32_t shift = 0;
    while (std::uint64_t{1} << shift < by) ++shift;
    return {static_cast<std::uint32_t>((((std::uint64_t{1} << shift) - by) << 32) / by + 1), shift};
  }
  /// n / by for n < 2^31.
  [[nodiscard]] constexpr std::uint32_t quotient(std::uint32_t n) const {
    return (static_cast<std::uint32_t>(std::uint64_t{n} * multiplier >> 32) + n) >> shift;
  }
};

}  // namespace moeplan::cuda
