#pragma once
/// Intervals of a forecast's figures and the risk that its peak exceeds the device.

#include <cstdint>

#include "core/spec/forecast.hpp"
#include "planner/evaluate.hpp"
#include "planner/lanes.hpp"

namespace moeplan {

/// Central 90 % of the step time. The prices' ends (lanes low, high) and the load draws (lane p95) are independent of each other: above
/// the median their distances add as squares. Below, fast draws are not counted on.
[[nodiscard]] Interval step_interval(const Four& step);

/// Probability that a peak exceeds `have`, the peaks of the load draws taken as normal through their median and 95th percentile.
/// Rounded up to 1e-4: what 16 draws cannot tell from nothing is nothing.
[[nodiscard]] double out_of_memory_risk(std::int64_t median, std::int64_t p95, std::int64_t have);

/// Fills in the intervals of `forecast` for a step of these lanes on `problem`'s cluster.
void add_intervals(Forecast& forecast, const Four& step, const Problem& problem);

/// Same for any plan, under any schedule: the relative interval is that of the plan under 1F1B. The group may be of either.
void add_intervals(Forecast& forecast, const Evaluator& shared, Evaluator::Group& group, const Plan& plan);

}  // namespace moeplan
