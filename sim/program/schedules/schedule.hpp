#pragma once
/// In which order a stage takes the passes of its micro-batches. A schedule is one file here and one line in schedules.cpp: a pure
/// function from (plan, stage) to a list of turns. Lowering writes the turns out (sim/program/issue.hpp), the planner's closed
/// form plays them with the passes' durations, the engine plays the lowered instances.
///
/// Chunk c of stage s is virtual stage c p + s (p stages): a micro-batch visits the virtual stages in order, and comes back.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/spec/plan.hpp"

namespace moeplan {

/// One pass over a chunk's slots, or (`both`) a backward and a forward pass side by side.
struct Turn {
  enum class Kind : std::uint8_t {
    forward,
    backward,   ///< input and weight gradients; under a split schedule the input gradients alone
    weight,     ///< split schedules: the weight gradients put off
    both,
  };
  Kind kind = Kind::forward;
  std::int32_t chunk = 0, micro_batch = 0;                   ///< of the pass; of `both`: of the backward pass
  std::int32_t forward_chunk = -1, forward_micro_batch = -1; ///< `both`: of the forward pass
  bool operator==(const Turn&) const = default;
};

struct ScheduleRule {
  Schedule schedule;
  std::vector<Turn> (*turns)(const Plan& plan, int stage);
  bool splits_backward;   ///< weight gradients have turns of their own
};

/// Every schedule there is, in the order of the enum.
[[nodiscard]] std::span<const ScheduleRule> schedules();

/// A stage's turns in order. The plan's schedule fits its degrees (`schedule_fault` is empty).
[[nodiscard]] std::vector<Turn> turns(const Plan& plan, int stage);

/// Whether backward passes come in two turns under the plan's schedule.
[[nodiscard]] bool splits_backward(const Plan& plan);

/// Why the plan's schedule does not fit its degrees and micro-batches, in numbers; empty if it does.
[[nodiscard]] std::string schedule_fault(const Plan& plan);

}  // namespace moeplan
