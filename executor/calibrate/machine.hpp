#pragma once
/// What of a machine belongs to no operator: what timing itself takes, how calls follow each other, copies of columns, load.

#include <functional>
#include <vector>

#include "executor/calibrate/calibrate.hpp"

namespace moeplan {

/// What the backend's clock says of nothing: the median of 21.
[[nodiscard]] Seconds bare_seconds(Backend& backend);

/// Work that keeps the device as busy as a step does: products of two square matrices, as many as take about `length`. None for a length of zero.
class Busy {
 public:
  Busy(Backend& backend, Seconds length);
  [[nodiscard]] std::function<void()> work() const;

 private:
  [[nodiscard]] op::Linear square() const { return {.tokens = side_, .in = side_, .out = side_}; }
  Backend& backend_;
  std::vector<Backend::Memory> memory_;
  std::vector<TensorView> operands_;
  std::int64_t side_ = 0, times_ = 0;
};

/// By key (core/spec/profile_keys.hpp), of a backend with recordings (a device); none of others.
///   launch         a sum of 64 elements in a row of 256 such that are queued at once, less the same alone: what a call adds to its own time
///   copy_columns   a sum one of whose terms is every second run of 128 columns of its base, less the same of a dense tensor: 1 to 128 MiB
[[nodiscard]] std::vector<ProfileSample> machine_samples(Backend& backend, const Surroundings& around);

}  // namespace moeplan
