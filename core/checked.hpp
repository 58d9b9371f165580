#pragma once
/// Sums and products of numbers that came from a file: they throw instead of wrapping round.

#include <cstdint>
#include <string>

#include "core/error.hpp"

namespace moeplan {

/// Throws InputError{where} if `a * b` does not fit 63 bits.
[[nodiscard]] inline std::int64_t checked_mul(std::int64_t a, std::int64_t b, const char* where) {
  std::int64_t r = 0;
  if (__builtin_mul_overflow(a, b, &r))
    throw InputError(where, std::to_string(a) + " x " + std::to_string(b) + " does not fit 63 bits");
  return r;
}

/// Throws InputError{where} if `a + b` does not fit 63 bits.
[[nodiscard]] inline std::int64_t checked_add(std::int64_t a, std::int64_t b, const char* where) {
  std::int64_t r = 0;
  if (__builtin_add_overflow(a, b, &r))
    throw InputError(where, std::to_string(a) + " + " + std::to_string(b) + " does not fit 63 bits");
  return r;
}

/// Smallest multiple count: ceil(a / b) for a >= 0, b > 0.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace moeplan
