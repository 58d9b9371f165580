#pragma once
/// The engine's costs from the cost model, for one plan of one problem.

#include "sim/cost/groups.hpp"
#include "sim/cost/price.hpp"
#include "sim/engine/compile.hpp"

namespace moeplan {

/// `prices` and `links` must outlive the result. `skew`: busiest rank's rows over the mean, as in Links::price. Calls hold multiprocessors (Links::lent) where
/// they are played with PlayOptions::interference.
[[nodiscard]] Costs model_costs(const Prices& prices, const Links& links, const Parallelism& parallelism, double skew = 1);

/// Same where memory's bandwidth is shared too and compute slows exchanges: these have their isolated price, whatever the schedule lays beside them, since the engine
/// slows them while compute runs. `device` gives the bandwidth.
[[nodiscard]] Costs interfering_costs(const Prices& prices, const Links& links, const Parallelism& parallelism, const DeviceSpec& device, double skew = 1);

}  // namespace moeplan
