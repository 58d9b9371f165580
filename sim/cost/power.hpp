#pragma once
/// Which clock a device settles at under what it is given to do (core/spec/power_law.hpp has the law of one call).

#include <array>
#include <span>
#include <vector>

#include "core/spec/power_bound.hpp"
#include "core/spec/power_law.hpp"
#include "sim/cost/utilisation.hpp"

namespace moeplan {

/// What each class of calls draws, by operator and pass. Const after construction.
class PowerTables {
 public:
  /// `device`: the one that was measured. Throws InputError for a sample whose key is no call of the catalogue, or does nothing.
  PowerTables(const PowerProfile& profile, const DeviceSpec& device, std::span<const ProfileSample> times = {});

  /// A call that takes `seconds` at rest, and by the data sheet `compute` seconds for its flops and `traffic` for its bytes:
  ///   with products  J = watts compute + memory traffic      memory: the least of the samples without, which does least beside
  ///   others         J = watts traffic
  ///   experts        J of the sample over its time at rest (`times`), times `seconds`: both count tiles, not rows (448 experts of 3584 x 6144 take 5.04 J in 8.03 ms with 146 rows
  ///                  each and 5.07 J in 8.28 ms with 256)
  /// From the samples of its operator and pass that are bound as it is (core/spec/power_bound.hpp), by inverse squared distance of their shapes; without any those bound
  /// otherwise; without any those of its other pass; without any the mean of all with products, or `memory`.
  [[nodiscard]] PoweredCall call(const OpCall& call, double compute, double traffic, double seconds) const;
  [[nodiscard]] const PowerProfile& profile() const { return profile_; }
  [[nodiscard]] double memory() const { return memory_; }   ///< W beyond idle at the full rate of memory; nothing where no sample says

 private:
  struct Class {
    CallShape shape;
    double watts = 0, clock_share = 0;
    PowerBound bound;               ///< of the call itself
    double seconds = 0;             ///< at rest, of experts that were timed
    bool products = false;      ///< watts are those of products
    bool by_products = false;   ///< it was bound by them
  };
  PowerProfile profile_;
  std::array<std::array<std::vector<Class>, 2>, std::variant_size_v<Op>> of_;   ///< operator, pass
  std::array<Class, 2> mean_;                                                  ///< bound by memory (the least watts), by products
  double memory_ = 0;   ///< nothing where no sample is bound by bytes: what products were seen to draw then has their bytes in it
};

/// One of the calls that follow each other over and over.
struct Repeated {
  PoweredCall call;
  double times = 1;
};
/// The highest clock, over the boost clock, at which they draw no more than the limit on average; at least `kLeastClock`.
///   sum of times (idle t(x) + D(x)) / sum of times t(x) <= limit
/// The left side grows with x: the clock is found by halving.
[[nodiscard]] double sustained_clock(const PowerProfile& profile, std::span<const Repeated> calls);

}  // namespace moeplan
