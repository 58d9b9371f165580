#pragma once
/// Which cluster: the smallest, the cheapest and the fastest that do a job, over device types and counts, and the least count on which
/// anything fits, with the proof that the counts below do not do.

#include "planner/planner.hpp"

namespace moeplan {

struct RecommendOptions {
  SearchOptions search;
  std::optional<double> deadline;          ///< seconds
  std::optional<double> budget;            ///< dollars
  std::int64_t most_devices = 1024;
};

/// One device type, as a problem on any cluster of it; counts come from `resized`. All share model, workload, load and runtime.
struct DeviceType {
  Problem problem;
};

/// What the best plan of one cluster does. Deadline and budget are held against the upper ends of the intervals.
struct ClusterOption {
  ClusterSpec cluster;
  RankedPlan best;
  std::optional<OptimizerKind> optimizer = std::nullopt;   ///< of `best`, where it was searched
  bool meets = false;                      ///< deadline and budget, as far as they are given
};

/// The least number of devices of a type on which anything fits.
struct LeastDevices {
  std::string device;
  std::int64_t devices = 0;
  std::optional<std::int64_t> below;       ///< the next smaller count that machines allow; none if there is none
  std::optional<Infeasible> proof;         ///< why nothing fits there
  std::int64_t refused = 0;                ///< smaller counts, each searched or excluded because the weights alone exceed it
};

struct Recommendation {
  std::vector<ClusterOption> options;      ///< by device type, then count
  std::optional<std::size_t> smallest, cheapest, fastest;   ///< indices of options that meet what is asked
  std::vector<LeastDevices> least;         ///< per device type on which anything fits
  std::optional<Infeasible> infeasible;    ///< nothing fits on any count
};

/// Throws InputError for a deadline or budget without tokens to train on, a budget without a price.
[[nodiscard]] Recommendation recommend(const std::vector<DeviceType>& types, const RecommendOptions& options);

/// Counts that whole machines, or the halves of one, make up, ascending: 1, 2, 4, ... devices of one machine, then 1, 2, 3, 4, 6, 8, 12 ... machines.
[[nodiscard]] std::vector<std::int64_t> device_counts(std::int64_t per_machine, std::int64_t most);

}  // namespace moeplan
