#pragma once
/// Four step times computed side by side: what a candidate takes at the median load, at the 95th percentile of the load draws, and
/// at the ends of the cost model's interval. All four follow the same dependencies, so one walk serves them.

#include <array>
#include <cstddef>

namespace moeplan {

enum class Lane4 : std::size_t { median, p95, low, high };

/// Seconds (or bytes a second, ...) of the four lanes. Plain arrays of fixed length: the compiler keeps them in vector registers.
struct Four {
  std::array<double, 4> v{};
  static Four of(double x) { return {{x, x, x, x}}; }
  [[nodiscard]] double operator[](Lane4 lane) const { return v[static_cast<std::size_t>(lane)]; }
  [[nodiscard]] double median() const { return v[0]; }
};

inline Four operator+(const Four& a, const Four& b) { return {{a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]}}; }
inline Four operator-(const Four& a, const Four& b) { return {{a.v[0] - b.v[0], a.v[1] - b.v[1], a.v[2] - b.v[2], a.v[3] - b.v[3]}}; }
inline Four operator*(const Four& a, double k) { return {{a.v[0] * k, a.v[1] * k, a.v[2] * k, a.v[3] * k}}; }
inline Four max(const Four& a, const Four& b) {
  return {{a.v[0] > b.v[0] ? a.v[0] : b.v[0], a.v[1] > b.v[1] ? a.v[1] : b.v[1], a.v[2] > b.v[2] ? a.v[2] : b.v[2], a.v[3] > b.v[3] ? a.v[3] : b.v[3]}};
}
inline Four& operator+=(Four& a, const Four& b) { return a = a + b; }

}  // namespace moeplan
