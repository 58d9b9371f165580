#pragma once
/// Measured times of operator and communication calls on one device, with provenance.

#include <optional>
#include <string>
#include <vector>

#include "core/fields.hpp"
#include "core/quantity.hpp"
#include "core/spec/cluster.hpp"

namespace moeplan {

/// One measured call. `key` is the calibration key of an OpCall (kernels/catalogue.hpp), e.g. "linear tokens=8192 in=7168 ... forward".
struct ProfileSample {
  std::string key;
  Seconds median{};
  double spread = 0;        ///< half width of the central 90 % over the median
  std::int64_t count = 0;
  bool operator==(const ProfileSample&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("key", &ProfileSample::key).required(), field("median", &ProfileSample::median).required().above(0).at_most(1e4),
                           field("spread", &ProfileSample::spread).between(0, 10), field("count", &ProfileSample::count).at_least(0));
  }
};

/// What calls of one class draw (sim/cost/power.hpp): energy and time of one of them, repeated until the device held its power.
struct PowerSample {
  std::string key;          ///< of the call that was repeated
  double watts = 0;         ///< W beyond `idle` at `boost` for each unit of utilisation: J of a call over the seconds that its flops or bytes take at the data sheet's rates
  double clock_share = 0;   ///< of its time, that which grows as the clock falls
  bool operator==(const PowerSample&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("key", &PowerSample::key).required(), field("watts", &PowerSample::watts).required().above(0).at_most(1e6),
                           field("clock_share", &PowerSample::clock_share).required().between(0, 1));
  }
};

/// A device that lowers its clock to hold a limit of power.
struct PowerProfile {
  double limit = 0;      ///< W, held on average over tens of milliseconds
  double peak = 0;       ///< W, above which a call is slowed at once, whatever the average
  double idle = 0;       ///< W, awake at the boost clock and doing nothing
  double boost = 0;      ///< MHz, below the limit
  double exponent = 1;   ///< n: the energy of arithmetic goes with the n-th power of the clock, for voltage falls with it
  std::vector<PowerSample> samples;
  bool operator==(const PowerProfile&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("limit", &PowerProfile::limit, "W").required().above(0).at_most(1e5), field("peak", &PowerProfile::peak, "W").required().above(0).at_most(1e5),
                           field("idle", &PowerProfile::idle, "W").required().at_least(0).at_most(1e5), field("boost", &PowerProfile::boost, "MHz").required().above(0).at_most(1e5),
                           field("exponent", &PowerProfile::exponent).between(0, 4), field("samples", &PowerProfile::samples).required());
  }
};

struct DeviceProfile {
  std::string name;
  std::string driver, date, source;
  DeviceSpec device;        ///< what it was measured on: its ceilings turn times into utilisation
  std::vector<ProfileSample> samples;
  std::optional<PowerProfile> power = {};   ///< with it the samples were taken at rest; absent: times hold at whatever clock they were taken
  bool operator==(const DeviceProfile&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("name", &DeviceProfile::name).required(), field("device", &DeviceProfile::device, "measured on").required(),
                           field("driver", &DeviceProfile::driver), field("date", &DeviceProfile::date).required(), field("source", &DeviceProfile::source).required(),
                           field("samples", &DeviceProfile::samples).required(), field("power", &DeviceProfile::power));
  }
};

}  // namespace moeplan
