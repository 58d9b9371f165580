#pragma once
/// What of a plan the executor can run. Everything else is refused before any rank starts, with the reason.

#include "executor/backend/backend.hpp"
#include "executor/walk/walk.hpp"

namespace moeplan {

/// Throws InputError naming the field of the plan, why it cannot run on `ranks` ranks of this backend, and what would
/// do.
void refuse_what_cannot_run(const Problem& problem, const Plan& plan, const Backend& backend,
                            const WalkOptions& options, int ranks);

/// Whether tokens go once to each rank (or node) that has some of their experts: the runtime is priced so, and no
/// exchange is in pieces.
[[nodiscard]] bool tokens_go_once(const Problem& problem, const Plan& plan, const WalkOptions& options);
/// Makes the exchanges of a program those of tokens that go once, if they do.
void exchange_once(Program& program, const Problem& problem, const Plan& plan, const WalkOptions& options);

/// The program of a rank with ragged buffers of the run's bound: `options.routed_bound`, but never more than all rows
/// of the expert group.
[[nodiscard]] Program lower_for_run(const Problem& problem, const Plan& plan, const WalkOptions& options, int rank);

}  // namespace moeplan
