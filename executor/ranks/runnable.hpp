#pragma once
/// What of a plan the executor can run. Everything else is refused before any rank starts, with the reason.

#include "executor/backend/backend.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {

/// Throws InputError naming the field of the plan, why it cannot run on `ranks` ranks of this backend, and what would
/// do.
void refuse_what_cannot_run(const Problem& problem, const Plan& plan, const Backend& backend,
                            const WalkOptions& options, int ranks);

/// The program of a rank with ragged buffers of the run's bound: `options.routed_bound`, but never more than all rows
/// of the expert group.
[[nodiscard]] Program lower_for_run(const Problem& problem, const Plan& plan, const WalkOptions& options, int rank);

}  // namespace moeplan
