#pragma once
/// How sure a choice is: which one number of the problem would have to change by how much for another plan to win.

#include "planner/planner.hpp"

namespace moeplan {

/// Another plan wins from here on.
struct Threshold {
  std::string number;        ///< "bf16 peak", "NVLink4 bandwidth", ...
  double factor = 1;         ///< of that number
  Plan plan;                 ///< the winner
  double gain = 0;           ///< what it gains at twice the way there (in ratio), 0.02: 2 %
};

/// Thresholds between `chosen` and each of `others`, nearest first, at most one for each number and only within a factor of four. The
/// others must fit the device; scaled numbers do not change memory.
[[nodiscard]] std::vector<Threshold> thresholds(const Problem& problem, const Plan& chosen, const std::vector<Plan>& others, int threads);

/// What more memory would buy: the first of 1.1, 1.25, 1.5 and 2 times the device's memory with which another plan is faster by more than half
/// a per cent, and that plan, whose peak says how much it takes.
struct MoreMemory {
  RankedPlan plan;
  double faster = 0;         ///< 0.1: 10 %
};
[[nodiscard]] std::optional<MoreMemory> more_memory(const Problem& problem, const Forecast& chosen, const SearchOptions& options);

/// In how many of their decisions two plans differ.
[[nodiscard]] int distance(const Plan& a, const Plan& b);

}  // namespace moeplan
