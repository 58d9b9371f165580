#pragma once
/// Prices of a problem's calls, at the clock that a plan's steps hold.

#include <map>
#include <mutex>

#include "core/spec/plan.hpp"
#include "sim/cost/price.hpp"

namespace moeplan {

/// Where the profile knows what calls draw, each plan has a clock: that at which the calls of a forward and a backward pass of one micro-batch through all
/// layers, one after the other, draw what the device may. They are cut for nothing but experts, over as many ranks as there are devices and experts allow,
/// under the load alone, so that plans differ in it by their micro-batch and recompute. Ranks that wait for each other draw less: with several devices the
/// lower ends of prices are those of the boost clock. Upper ends are those of a clock 2 % lower.
class PlanClocks {
 public:
  /// `rested`: of the problem's load. Both must outlive it.
  PlanClocks(const Problem& problem, const Prices& rested) : problem_(problem), rested_(rested) {}
  /// From any thread; the same whoever asked first.
  [[nodiscard]] HeldClock of(const Plan& plan) const;

 private:
  const Problem& problem_;
  const Prices& rested_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::int64_t, Recompute>, HeldClock> known_;   ///< by micro-batch
};

/// A held clock with its ends: upper ones of a clock 2 % lower; lower ones of one 2 % higher where a device computes `alone`, else of the boost clock.
[[nodiscard]] HeldClock with_ends(double clock, bool alone);

/// Those of one plan, with what its load and its exchange do to ragged products (planner/load_spread.hpp).
[[nodiscard]] Prices prices_of(const Problem& problem, const Plan& plan);

}  // namespace moeplan
