#pragma once
/// What crosses between a device and the host, and what the driver's allocator takes.

#include <vector>

#include "core/spec/profile.hpp"

namespace moeplan {

/// Copies of 256 MiB each way from and to pinned memory, alone, and an allocation of as many bytes with its release, by the host's clock (medians
/// of 9). Keys: core/spec/profile_keys.hpp.
[[nodiscard]] std::vector<ProfileSample> cuda_host_link(int device);

}  // namespace moeplan
