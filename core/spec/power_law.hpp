#pragma once
/// What a device draws and how long it takes at a clock below its boost clock, in closed form. One call, of seconds t and joules D beyond idle at boost:
///
///   core(s) = (1 + s) / 2                              of D, what the clock's voltage feeds; memory has a supply of its own
///   D(x)    = D (1 - core + core x^n)                  x: clock over boost, n: `exponent`
///   reached : idle + D(x) / t = peak                   above it the call is slowed at once, however little was drawn before; 1 where it draws less
///   t(x)    = t (1 - s + s reached / min(x, reached))  s: `clock_share`
///
/// Measured on one H200 (2026-11-30): products of 8192^3 take the same 1.41 to 1.44 ms and 1.16 J at 1,980 and at 1,733 MHz, 930 W, and follow the
/// clock below (1.60 ms and 1.04 J at 1,538); attention of 770 W follows it from 1,980 MHz on, with n = 0.8 to 1.2; copies take the same time and
/// 0.9 to 1 of their energy at 1,600 MHz.

#include <algorithm>
#include <cmath>

#include "core/spec/profile.hpp"

namespace moeplan {

/// A call as it runs alone and at rest.
struct PoweredCall {
  double seconds = 0, joules = 0;   ///< joules: beyond idle, as if nothing slowed it
  double clock_share = 0;
  double reached = 1;               ///< of the boost clock
};

[[nodiscard]] inline double core_share(double clock_share) { return (1 + clock_share) / 2; }
/// Energy at `x` of the boost clock over that at boost.
[[nodiscard]] inline double energy_at(const PowerProfile& p, double clock_share, double x) { return 1 - core_share(clock_share) * (1 - std::pow(x, p.exponent)); }

/// The least clock that a call is taken to reach: no device runs its products at less than a tenth of its boost clock.
inline constexpr double kLeastClock = 0.1;

[[nodiscard]] inline double reached_clock(const PowerProfile& p, double clock_share, double joules, double seconds) {
  const double allowed = (p.peak - p.idle) * seconds / joules;   // of the energy at boost
  if (!(allowed < 1) || p.exponent <= 0) return 1;
  const double core = core_share(clock_share);
  return std::clamp(std::pow(std::max(0.0, 1 - (1 - allowed) / core), 1 / p.exponent), kLeastClock, 1.0);
}

[[nodiscard]] inline double seconds_at(const PoweredCall& c, double x) { return c.seconds * (1 - c.clock_share + c.clock_share * c.reached / std::min(x, c.reached)); }
[[nodiscard]] inline double joules_at(const PowerProfile& p, const PoweredCall& c, double x) { return c.joules * energy_at(p, c.clock_share, std::min(x, c.reached)); }

}  // namespace moeplan
