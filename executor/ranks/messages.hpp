#pragma once
/// Which messages between pipeline stages go in one call. A send ends when the other side receives. Without virtual
/// stages a chain of stages ends somewhere, and whoever waits there lets the others go on; with virtual stages the
/// chain is a ring: each stage would wait to send to the next one, which waits to send to its next. So a rank that
/// waits takes what the others have for it by then, for whichever pass.
///
/// That is decided before the run, by playing the passes of all stages (a forward pass takes 1, a backward pass 2):
/// what is sent to a stage that waits in a call is received in that call. A call then only ever waits for passes and
/// calls that have come before it in this play, so there is an order in which all come to an end, however long the
/// passes really take. The order of the passes stays the planner's, and so do the bytes.

#include "core/spec/plan.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

/// Moves the receives of a stage's program to the calls that take them, and writes passes that are priced side by side
/// one after the other. Nothing changes without either. Throws std::logic_error where no order of calls ends.
void order_messages(Program& program, const Plan& plan);

}  // namespace moeplan
