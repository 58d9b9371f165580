#pragma once
/// The driver's meters (NVML), found when the program runs: it neither links to the library nor needs it.

#include <optional>
#include <string>

#include "executor/calibrate/power.hpp"

namespace moeplan {

struct FoundMeter {
  std::optional<PowerMeter> meter;
  std::string absent;   ///< why there is none
};

/// Only read: clocks and limits stay as they are.
[[nodiscard]] FoundMeter cuda_power_meter(int device);

}  // namespace moeplan
