#pragma once
/// What a plan is predicted to do.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/spec/plan.hpp"
#include "core/spec/results.hpp"

namespace moeplan {

/// Where a step's time goes on the rank that sets its pace; the parts sum to the step.
enum class TimeCategory : std::uint8_t { forward, backward, recompute, expert_communication, weight_communication, pipeline_bubble, pipeline_exchange, optimizer };
template <>
struct EnumNames<TimeCategory> {
  static constexpr std::array names{std::pair{TimeCategory::forward, std::string_view("forward")},
                                    std::pair{TimeCategory::backward, std::string_view("backward")},
                                    std::pair{TimeCategory::recompute, std::string_view("recompute")},
                                    std::pair{TimeCategory::expert_communication, std::string_view("expert_communication")},
                                    std::pair{TimeCategory::weight_communication, std::string_view("weight_communication")},
                                    std::pair{TimeCategory::pipeline_bubble, std::string_view("pipeline_bubble")},
                                    std::pair{TimeCategory::pipeline_exchange, std::string_view("pipeline_exchange")},
                                    std::pair{TimeCategory::optimizer, std::string_view("optimizer")}};
};
inline constexpr std::size_t kTimeCategories = EnumNames<TimeCategory>::names.size();

/// Central 90 % of a figure, in its own unit.
struct Interval {
  double low = 0, high = 0;
};

struct Forecast {
  Seconds step{};                      ///< at the median expert load
  Seconds step_p95{};                  ///< at the 95th percentile of the load draws
  std::array<Seconds, kTimeCategories> time{};
  std::array<double, 3> basis{};       ///< share of the priced time that is measured, interpolated, roofline
  MemoryBreakdown memory;              ///< worst stage, median load
  MemoryBreakdown memory_p95;
  int worst_stage = 0;                 ///< pipeline stage of `memory`
  double dropped = 0;                  ///< expected share of expert assignments beyond the capacity
  Flops model_flops{};                 ///< of the whole step over all devices: forward + backward, no recompute
  double tokens_per_second = 0;        ///< whole cluster
  double tokens_per_second_per_device = 0;
  FlopsPerSecond flops_per_device{};
  double mfu = 0;                      ///< over the device's dense peak for bf16
  std::optional<double> device_hours;  ///< for the workload's tokens
  std::optional<double> cost_usd;
  /// From the prices' intervals (docs/cost.md) and the load draws: docs/planner.md, "Intervals".
  Interval step_interval, tokens_per_second_interval, memory_interval;
  std::optional<Interval> device_hours_interval, cost_interval;
  double out_of_memory_risk = 0;       ///< share of load draws whose peak exceeds the device, a normal through both peaks
};

struct RankedPlan {
  Plan plan;
  Forecast forecast;
};

/// Why nothing fits: the certificate of exit code 3.
struct Infeasible {
  std::string binding;                 ///< "memory of one device", "host memory of a node", ...
  Bytes need{}, have{};                ///< of the closest candidate
  struct Consumer { std::string name; Bytes bytes; };
  std::vector<Consumer> largest;       ///< three largest
  std::string nearest_fix;
};

}  // namespace moeplan
