#pragma once
/// The engine's costs from the cost model, for one plan of one problem.

#include "sim/cost/groups.hpp"
#include "sim/cost/price.hpp"
#include "sim/engine/compile.hpp"

namespace moeplan {

/// `prices` and `links` must outlive the result. `skew`: busiest rank's rows over the mean, as in Links::price.
[[nodiscard]] Costs model_costs(const Prices& prices, const Links& links, const Parallelism& parallelism, double skew = 1);

/// Same for PlayOptions::interference: exchanges have their isolated price, whatever the schedule lays beside them, since the engine
/// slows them while compute runs; calls say what they take from compute. `device` gives multiprocessors and bandwidth.
[[nodiscard]] Costs interfering_costs(const Prices& prices, const Links& links, const Parallelism& parallelism, const DeviceSpec& device, double skew = 1);

}  // namespace moeplan
