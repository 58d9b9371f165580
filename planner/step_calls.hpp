#pragma once
/// What a device is given to do over a step: the calls that set its clock (planner/prices.hpp), and what a mix of them was seen to draw.

#include <span>
#include <vector>

#include "core/spec/plan.hpp"
#include "kernels/catalogue.hpp"

namespace moeplan {

struct CountedCall {
  OpCall call;
  double times = 1;
};

/// Calls of a forward and a backward pass of one micro-batch through all layers: each kind of layer once, as often as there are such layers. Cut for nothing but experts, over as
/// many ranks as there are devices and experts allow.
[[nodiscard]] std::vector<CountedCall> step_calls(const Problem& problem, const Plan& plan);

/// Steps of a plan on one device, one after the other, as the meters saw them. The problem's load is that of those steps.
struct MixReading {
  Problem problem;
  Plan plan;
  double clock = 0;   ///< MHz, mean
  double watts = 0;   ///< mean
};

/// `profile.power` with what mixes drew: each is one more equation on the energies of the classes that it is made of,
///
///   sum of J(x) = (watts - idle) sum of t(x)      x: clock / boost, over the calls of a micro-batch
///
/// A class stands for shapes that draw some 10 % more or less than its own (kClassSpread), a mix is read to 2 % (kMixSpread), and the likeliest energies are taken: least squares of both,
/// in logarithms. `limit` becomes what those mixes held, in the mean, that the device slowed (below 0.95 of its boost clock): a device that looks at its power more often than
/// a meter does holds less of a mix that comes and goes than of one call that repeats.
/// Without a power section, or without mixes, nothing changes. The order of the mixes says nothing.
[[nodiscard]] std::optional<PowerProfile> with_mixes(const DeviceProfile& profile, std::span<const MixReading> mixes);

}  // namespace moeplan
