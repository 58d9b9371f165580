#pragma once
/// What computing loses beside calls, of the samples that plans were priced with.

#include <span>

#include "core/spec/plan.hpp"
#include "sim/cost/link_samples.hpp"

namespace moeplan {

/// Samples that the price of some call of these plans rests on (Links::lent): of the profile of another device, or of collectives and groups that no plan has, there are none.
[[nodiscard]] std::vector<LinkSamples::Share> measured_shares(const Problem& problem, std::span<const Plan> plans);

}  // namespace moeplan
