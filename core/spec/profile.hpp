#pragma once
/// Measured times of operator and communication calls on one device, with provenance.

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

struct DeviceProfile {
  std::string name;
  std::string driver, date, source;
  DeviceSpec device;        ///< what it was measured on: its ceilings turn times into utilisation
  std::vector<ProfileSample> samples;
  bool operator==(const DeviceProfile&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("name", &DeviceProfile::name).required(), field("device", &DeviceProfile::device, "measured on").required(),
                           field("driver", &DeviceProfile::driver), field("date", &DeviceProfile::date).required(), field("source", &DeviceProfile::source).required(),
                           field("samples", &DeviceProfile::samples).required());
  }
};

}  // namespace moeplan
