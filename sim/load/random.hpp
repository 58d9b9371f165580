#pragma once
/// Random numbers that are the same on every machine and library: std:: distributions are not. Generator: SplitMix64
/// (Steele, Lea, Flood 2014), whose output is fixed by its definition.

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace moeplan {

/// -2 ln(u), u a normal number on (0, 1). Like `cos_turn`: series of our own, a few units in the last place of libm's, which differ from
/// machine to machine, and free of branches and calls, so that a compiler takes several numbers side by side (sim/load/draws.cpp).
[[nodiscard]] inline double minus_two_log(double u) {
  // u = 2^k m, m on [sqrt(1/2), sqrt(2)); ln m = 2 artanh(s), s = (m - 1) / (m + 1), |s| < 0.172.
  constexpr std::uint64_t kRootHalf = 0x3FE6A09E667F3BCDu, kBias = 1024;
  const auto bits = std::bit_cast<std::uint64_t>(u);
  const std::uint64_t biased = (bits - kRootHalf + (kBias << 52)) >> 52;   // k + 1024
  const double k = std::bit_cast<double>(0x4330000000000000u | biased) - (0x1p52 + static_cast<double>(kBias));
  const double m = std::bit_cast<double>(bits - ((biased - kBias) << 52));
  const double s = (m - 1) / (m + 1), z = s * s;
  double series = 1.0 / 21;
  series = series * z + 1.0 / 19;
  series = series * z + 1.0 / 17;
  series = series * z + 1.0 / 15;
  series = series * z + 1.0 / 13;
  series = series * z + 1.0 / 11;
  series = series * z + 1.0 / 9;
  series = series * z + 1.0 / 7;
  series = series * z + 1.0 / 5;
  series = series * z + 1.0 / 3;
  return -2 * (k * std::numbers::ln2 + 2 * (s + s * z * series));
}

/// cos(2 pi v), v on (0, 1).
[[nodiscard]] inline double cos_turn(double v) {
  // Quarter turns leave an angle of at most pi / 4, where Taylor's series of both functions end below 2^-55.
  const double shifted = 4 * v + 0x1.8p52;   // rounds to the nearest whole number, which stands in the last bits
  const auto quarter = std::bit_cast<std::uint64_t>(shifted);
  const double y = (4 * v - (shifted - 0x1.8p52)) * (std::numbers::pi / 2), z = y * y;
  const auto factorial = [](int n) constexpr { double f = 1; for (int i = 2; i <= n; ++i) f *= i; return f; };
  double c = 1 / factorial(16);
  c = c * z - 1 / factorial(14);
  c = c * z + 1 / factorial(12);
  c = c * z - 1 / factorial(10);
  c = c * z + 1 / factorial(8);
  c = c * z - 1 / factorial(6);
  c = c * z + 1 / factorial(4);
  c = c * z - 0.5;
  c = c * z + 1;
  double o = 1 / factorial(17);
  o = o * z - 1 / factorial(15);
  o = o * z + 1 / factorial(13);
  o = o * z - 1 / factorial(11);
  o = o * z + 1 / factorial(9);
  o = o * z - 1 / factorial(7);
  o = o * z + 1 / factorial(5);
  o = o * z - 1 / factorial(3);
  o = y + y * z * o;
  // cos, -sin, -cos, sin.
  const std::uint64_t odd = 0 - (quarter & 1), sign = ((quarter + 1) & 2) << 62;
  return std::bit_cast<double>(((std::bit_cast<std::uint64_t>(o) & odd) | (std::bit_cast<std::uint64_t>(c) & ~odd)) ^ sign);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = (state_ += kStep);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  /// Uniform on (0, 1), neither end.
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1.0p-53; }

  /// Standard normal: Box-Muller, one of the pair.
  double normal() {
    const double radius = std::sqrt(minus_two_log(uniform()));
    return radius * cos_turn(uniform());
  }

  /// Passes over the next `n` outputs.
  void skip(std::uint64_t n) { state_ += n * kStep; }

  /// One attempt of Marsaglia and Tsang at a gamma of shape d + 1/3 >= 1, c = 1 / sqrt(9 d), from a normal x with 1 + c x > 0 and a uniform u;
  /// 0 if refused.
  [[nodiscard]] static double gamma_attempt(double d, double c, double x, double u) {
    const double v = 1 + c * x, cube = v * v * v;
    // The squeeze of the paper accepts 97 % of what the exact test below accepts, without its two logarithms.
    return u < 1 - 0.0331 * (x * x) * (x * x) || std::log(u) < 0.5 * x * x + d - d * cube + d * std::log(cube) ? d * cube : 0;
  }

  /// Gamma of this shape, scale 1: Marsaglia and Tsang 2000; below 1 through shape + 1 and a power of a uniform.
  double gamma(double shape) {
    if (shape < 1) return gamma(shape + 1) * std::pow(uniform(), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = normal();
      if (1 + c * x <= 0) continue;
      if (const double out = gamma_attempt(d, c, x, uniform()); out > 0) return out;
    }
  }

 private:
  static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15u;
  std::uint64_t state_;
};

/// A seed for item (a, b) of a stream, so that layers and draws do not depend on the order in which they are made.
[[nodiscard]] inline std::uint64_t seed_of(std::int64_t seed, std::uint64_t a, std::uint64_t b = 0) {
  Random r(static_cast<std::uint64_t>(seed) + 0x9E3779B97F4A7C15u * (a + 1));
  Random s(r.bits() + 0xD1B54A32D192ED03u * (b + 1));
  return s.bits();
}

}  // namespace moeplan
