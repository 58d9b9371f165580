#pragma once
/// Random numbers that are the same on every machine and library: std:: distributions are not. Generator: SplitMix64
/// (Steele, Lea, Flood 2014), whose output is fixed by its definition.

#include <cmath>
#include <cstdint>

namespace moeplan {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  /// Uniform on (0, 1), neither end.
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1.0p-53; }

  /// Standard normal: Box-Muller, one of the pair.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

  /// Gamma of this shape, scale 1: Marsaglia and Tsang 2000; below 1 through shape + 1 and a power of a uniform.
  double gamma(double shape) {
    if (shape < 1) return gamma(shape + 1) * std::pow(uniform(), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = normal(), v = 1 + c * x;
      if (v <= 0) continue;
      const double cube = v * v * v;
      const double u = uniform();
      // The squeeze of the paper accepts 97 % of what the exact test below accepts, without its two logarithms.
      if (u < 1 - 0.0331 * (x * x) * (x * x) || std::log(u) < 0.5 * x * x + d - d * cube + d * std::log(cube)) return d * cube;
    }
  }

 private:
  std::uint64_t state_;
};

/// A seed for item (a, b) of a stream, so that layers and draws do not depend on the order in which they are made.
[[nodiscard]] inline std::uint64_t seed_of(std::int64_t seed, std::uint64_t a, std::uint64_t b = 0) {
  Random r(static_cast<std::uint64_t>(seed) + 0x9E3779B97F4A7C15u * (a + 1));
  Random s(r.bits() + 0xD1B54A32D192ED03u * (b + 1));
  return s.bits();
}

}  // namespace moeplan
