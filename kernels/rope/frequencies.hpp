#pragma once
/// How far each pair of rotary columns turns a position: plain, divided throughout (linear), or divided where it turns slowly (YaRN, Llama 3), or
/// divided by a number of its own (LongRoPE, Ding et al. 2024).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "kernels/rope/op.hpp"

namespace moeplan::op {

/// Radians a position, [rotary_dim / 2]. What is kept of a frequency falls from 1 to 0 linearly between `yarn_beta_fast` and `yarn_beta_slow` turns over
/// the trained context: over the index of the pair (Peng et al. 2023, section 3.2) or over the turns themselves (Llama 3.1, `ramp_in_turns`).
[[nodiscard]] inline std::vector<double> frequencies(const Rope& op) {
  const double d = static_cast<double>(op.rotary_dim);
  const bool stretched = op.yarn_factor > 1, everywhere = op.yarn_original == 0;
  double low = 0, high = 0;
  if (stretched && !everywhere && !op.ramp_in_turns) {
    const auto pair_of = [&](double turns) { return d * std::log(op.yarn_original / (turns * 2 * std::numbers::pi)) / (2 * std::log(op.theta)); };
    low = pair_of(op.yarn_beta_fast), high = pair_of(op.yarn_beta_slow);
    if (op.yarn_truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, d - 1);
  }
  const auto kept = [&](double pair, double frequency) {
    if (everywhere) return 0.0;
    if (!op.ramp_in_turns) return 1 - std::clamp((pair - low) / std::max(high - low, 1e-3), 0.0, 1.0);
    const double turns = op.yarn_original * frequency / (2 * std::numbers::pi);
    return std::clamp((turns - op.yarn_beta_slow) / std::max(op.yarn_beta_fast - op.yarn_beta_slow, 1e-9), 0.0, 1.0);
  };
  std::vector<double> out;
  for (std::int64_t j = 0; j < op.rotary_dim / 2; ++j) {
    const double pair = static_cast<double>(j), plain = std::pow(op.theta, -2 * pair / d), share = stretched ? kept(pair, plain) : 1;
    const double divisor = op.divisors.empty() ? 1 : op.divisors.at(static_cast<std::size_t>(j));
    out.push_back(plain * (share + (1 - share) / op.yarn_factor) / divisor);
  }
  return out;
}

}  // namespace moeplan::op
