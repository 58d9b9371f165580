#pragma once
/// What a device holds while the calls of a plan follow each other, step after step.

#include "core/spec/plan.hpp"
#include "executor/calibrate/power.hpp"

namespace moeplan {

struct HeldPlan {
  Held step;
  LoadModel load;   ///< what the routers of the last step chose; the problem's own without experts
};

/// Two steps (the first warms up, the second is recorded for the device) and then those that are watched (`hold_steps`), of a plan of one rank on made-up weights and random tokens. Nothing
/// where the meters said too little. Throws InputError for a plan that does not run on the backend.
[[nodiscard]] std::optional<HeldPlan> hold_plan(const Problem& problem, const Plan& plan, Backend& backend, const PowerMeter& meter);

}  // namespace moeplan
