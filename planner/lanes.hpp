#pragma once
/// Four step times computed side by side: what a candidate takes at the median load, at the 95th percentile of the load draws, and
/// at the ends of the cost model's interval. All four follow the same dependencies, so one walk serves them.

#ifdef __SSE2__
#include <emmintrin.h>
#endif

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

#ifdef __SSE2__
// Two registers a value; left to itself the compiler takes one lane after another.
namespace lanes_detail {
template <class F>
inline Four both(const Four& a, const Four& b, F f) {
  Four out;
  _mm_storeu_pd(out.v.data(), f(_mm_loadu_pd(a.v.data()), _mm_loadu_pd(b.v.data())));
  _mm_storeu_pd(out.v.data() + 2, f(_mm_loadu_pd(a.v.data() + 2), _mm_loadu_pd(b.v.data() + 2)));
  return out;
}
}  // namespace lanes_detail
inline Four operator+(const Four& a, const Four& b) { return lanes_detail::both(a, b, [](__m128d x, __m128d y) { return _mm_add_pd(x, y); }); }
inline Four operator-(const Four& a, const Four& b) { return lanes_detail::both(a, b, [](__m128d x, __m128d y) { return _mm_sub_pd(x, y); }); }
inline Four max(const Four& a, const Four& b) { return lanes_detail::both(a, b, [](__m128d x, __m128d y) { return _mm_max_pd(x, y); }); }
inline Four operator*(const Four& a, double k) { return lanes_detail::both(a, Four::of(k), [](__m128d x, __m128d y) { return _mm_mul_pd(x, y); }); }
#else
inline Four operator+(const Four& a, const Four& b) { return {{a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]}}; }
inline Four operator-(const Four& a, const Four& b) { return {{a.v[0] - b.v[0], a.v[1] - b.v[1], a.v[2] - b.v[2], a.v[3] - b.v[3]}}; }
inline Four operator*(const Four& a, double k) { return {{a.v[0] * k, a.v[1] * k, a.v[2] * k, a.v[3] * k}}; }
inline Four max(const Four& a, const Four& b) {
  return {{a.v[0] > b.v[0] ? a.v[0] : b.v[0], a.v[1] > b.v[1] ? a.v[1] : b.v[1], a.v[2] > b.v[2] ? a.v[2] : b.v[2], a.v[3] > b.v[3] ? a.v[3] : b.v[3]}};
}
#endif
inline Four& operator+=(Four& a, const Four& b) { return a = a + b; }

}  // namespace moeplan
