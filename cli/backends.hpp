#pragma once
/// Where `run` computes.

#include <memory>
#include <string>

#include "core/spec/profile.hpp"
#include "executor/backend/backend.hpp"
#include "executor/calibrate/power.hpp"

namespace moeplan::cli {

/// The backends that this program was built with: "cpu", "null", and "cuda" where nvcc was found.
[[nodiscard]] std::vector<std::string> backend_names();

struct OpenBackend {
  std::unique_ptr<Backend> backend;
  std::string device;          ///< its name
  std::int64_t free_bytes = 0;   ///< what the device can still give
  std::string where;           ///< "this machine", "CUDA device 0"
  std::int64_t host_bytes = 0;   ///< what the machine can still give beside a device's memory; 0: they are one
};

/// `device` is that of "cuda", and current afterwards. Throws InputError where there is no such device.
[[nodiscard]] OpenBackend open_backend(const std::string& name, bool float32, int device = 0);

/// The link to the host, by key (core/spec/profile_keys.hpp); none where host and device are one.
[[nodiscard]] std::vector<ProfileSample> host_link_samples(const std::string& backend, int device = 0);

struct OpenMeter {
  std::optional<PowerMeter> meter;
  std::string absent;   ///< why there is none
};
[[nodiscard]] OpenMeter open_meter(const std::string& backend, int device = 0);

/// Device, build and backend of a measurement, in words: times are not mixed with those of another.
[[nodiscard]] std::string calibration_origin(const std::string& device, const std::string& version, const std::string& backend);

}  // namespace moeplan::cli
