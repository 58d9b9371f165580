#include "planner/intervals.hpp"

#include <algorithm>
#include <cmath>

namespace moeplan {
namespace {

/// 95th percentile of a standard normal.
constexpr double kP95 = 1.6449;

}  // namespace

Interval step_interval(const Four& step) {
  const double t = step.median(), above = step[Lane4::high] - t, load = std::max(0.0, step[Lane4::p95] - t);
  return {step[Lane4::low], t + std::sqrt(above * above + load * load)};
}

double out_of_memory_risk(std::int64_t median, std::int64_t p95, std::int64_t have) {
  if (p95 <= median) return median > have ? 1 : 0;
  const double sigma = static_cast<double>(p95 - median) / kP95, z = static_cast<double>(have - median) / sigma;
  const double risk = 0.5 * std::erfc(z / std::sqrt(2.0));
  return risk < 1e-5 ? 0 : std::ceil(risk * 1e4) / 1e4;
}

void add_intervals(Forecast& f, const Four& step, const Problem& problem) {
  f.step_interval = step_interval(step);
  const double tokens = f.tokens_per_second * f.step.value;
  f.tokens_per_second_interval = {tokens / f.step_interval.high, tokens / f.step_interval.low};
  const auto median = static_cast<double>(f.memory.peak().value), p95 = static_cast<double>(f.memory_p95.peak().value);
  f.memory_interval = {std::max(0.0, 2 * median - p95), p95};
  if (f.device_hours) {
    const double per_second = *f.device_hours / f.step.value;
    f.device_hours_interval = {per_second * f.step_interval.low, per_second * f.step_interval.high};
    if (f.cost_usd) {
      const double price = *f.cost_usd / *f.device_hours;
      f.cost_interval = {f.device_hours_interval->low * price, f.device_hours_interval->high * price};
    }
  }
  f.out_of_memory_risk = out_of_memory_risk(f.memory.peak().value, f.memory_p95.peak().value, problem.cluster.device.memory.value);
}

}  // namespace moeplan
