#include "sim/load/draws.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace moeplan {
namespace {

constexpr std::size_t kAhead = 32;  // a whole number of any machine's vectors; what is drawn ahead in vain costs little
using Few = std::array<double, kAhead>;

// Without fused multiply-adds, which would round otherwise than on machines that have none.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx2", "default")))
#endif
void logs_and_cosines(const double* __restrict u, const double* __restrict v, double* __restrict squares, double* __restrict cosines) {
  for (std::size_t i = 0; i < kAhead; ++i) squares[i] = minus_two_log(u[i]);
  for (std::size_t i = 0; i < kAhead; ++i) cosines[i] = cos_turn(v[i]);
}

/// Normals of uniforms.
void normals_of(const Few& u, const Few& v, Few& out) {
  Few squares, cosines;
  logs_and_cosines(u.data(), v.data(), squares.data(), cosines.data());
  for (std::size_t i = 0; i < kAhead; ++i) out[i] = std::sqrt(squares[i]) * cosines[i];
}

}  // namespace

void draw_normals(Random& random, std::span<double> out) {
  Few u, v, x;
  for (; out.size() >= kAhead; out = out.subspan(kAhead)) {
    for (std::size_t i = 0; i < kAhead; ++i) u[i] = random.uniform(), v[i] = random.uniform();
    normals_of(u, v, x);
    std::copy(x.begin(), x.end(), out.begin());
  }
  for (double& each : out) each = random.normal();
}

void draw_gammas(Random& random, std::span<const double> shapes, std::span<double> out) {
  // Attempts take three outputs each, drawn ahead; what takes another number of them (a shape below 1, a normal far
  // out) ends the run.
  Few u, v, x, accept;
  std::size_t at = kAhead;
  Random start = random;  // of the attempts drawn ahead
  const auto settle = [&] {
    if (at < kAhead) random = start, random.skip(3 * at);
    at = kAhead;
  };
  for (std::size_t e = 0; e < shapes.size(); ++e) {
    const double shape = shapes[e];
    if (shape < 1) {
      settle();
      out[e] = shape > 0 ? random.gamma(shape) : 0;
      continue;
    }
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (out[e] = 0; out[e] == 0;) {
      if (at == kAhead) {
        start = random;
        for (std::size_t i = 0; i < kAhead; ++i)
          u[i] = random.uniform(), v[i] = random.uniform(), accept[i] = random.uniform();
        normals_of(u, v, x);
        at = 0;
      }
      if (1 + c * x[at] <= 0) {
        settle();
        random.skip(2);
        out[e] = random.gamma(shape);
        break;
      }
      out[e] = Random::gamma_attempt(d, c, x[at], accept[at]);
      ++at;
    }
  }
  settle();
}

}  // namespace moeplan
