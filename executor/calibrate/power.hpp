#pragma once
/// What calls draw: each repeated alone, and where that slows the device again with as much rest as work (core/spec/power_law.hpp is the law that is fitted).

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/spec/profile.hpp"
#include "core/spec/power_law.hpp"
#include "executor/calibrate/calibrate.hpp"

namespace moeplan {

/// The meters of a device. From any thread. Nothing where a meter does not answer.
struct PowerMeter {
  std::function<std::optional<double>()> joules;   ///< drawn since some time ago; it may be counted in steps of 0.1 s
  std::function<std::optional<double>()> clock;    ///< MHz, now
  double limit = 0;                 ///< W
};

/// A call repeated, as the meters saw it.
struct Held {
  double seconds = 0;   ///< one call, by the device's clock
  double clock = 0;     ///< MHz, mean
  double watts = 0;     ///< mean, rests included
  double rate = 0;      ///< calls a second, rests included
};

/// What is measured of one class of calls.
struct PowerReading {
  OpCall call;
  Held sustained;                  ///< without rest
  std::optional<Held> rested;      ///< as long at rest as at work; where the sustained clock fell
  std::optional<double> share;     ///< of its time that follows the clock, by its time behind products; where the sustained clock did not fall
};

struct PowerReadings {
  double idle = 0, boost = 0;      ///< W and MHz while a tiny call each millisecond keeps the device awake
  std::vector<PowerReading> calls;
};

/// Of each class of calls (operator, pass, type of its weights, attention to all or to a window, bound by products or by bytes) that which takes longest by `samples`, and where products bind it one of at most an eighth of
/// that, which fills the device less. None above 10 ms where there are shorter ones: it would outlast what a device allows before it slows. Left out is what
/// `known` stands for: of a class bound by memory any sample does, of others one whose every dimension is within a factor of 1.3.
[[nodiscard]] std::vector<OpCall> power_calls(const std::map<std::string, OpCall>& calls, const std::vector<ProfileSample>& samples, const std::vector<PowerSample>& known, const DeviceSpec& device);

/// About 0.8 s a call. Calls whose operands do not fit are left out, and those of which the meters said too little; all, and `boost` 0, where that is so of the idle device.
[[nodiscard]] PowerReadings read_power(Backend& backend, const PowerMeter& meter, std::span<const OpCall> calls, const std::function<void(std::size_t, std::size_t)>& progress);

/// `step`, which waits for what it starts, over and over for 0.8 s and three times at least, 0.2 s after the first: seconds, clock and power of one. Nothing where the meters said too little.
[[nodiscard]] std::optional<Held> hold_steps(const PowerMeter& meter, const std::function<void()>& step);

/// The section that explains the readings. `limit`: of the device, W. `before`: an earlier section of the same device, whose samples are kept and whose
/// constants hold. The order of the readings says nothing.
///   peak      power of rested calls while they run, idle + energy / time: the median of those within 5 % of the highest
///   exponent  sum of ln (energy sustained / energy rested) over sum of ln (their clocks), of calls that drew less than 0.95 of the peak when rested
///   share     (time sustained / time rested - 1) / (clock reached when rested / clock sustained - 1)
///   watts     as sim/cost/power.hpp reads them: of products beside the memory's watts, so that those of `before` are counted again where a reading lowers these
/// Empty where nothing was slowed: then no time depends on it.
[[nodiscard]] std::optional<PowerProfile> fit_power(const PowerReadings& readings, double limit, const DeviceSpec& device, const std::optional<PowerProfile>& before);

}  // namespace moeplan
