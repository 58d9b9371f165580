#pragma once
/// What `compare` lays side by side beneath the step's totals: lanes, expert load, memory over the step.

#include <map>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "planner/simulation.hpp"

namespace moeplan::cli {

/// A figure, predicted and measured.
struct Pair {
  double predicted = 0, measured = 0;
  [[nodiscard]] double gap() const { return measured - predicted; }
};
using Pairs = std::map<std::string, Pair>;

/// Of an even number of values the mean of the middle two.
[[nodiscard]] double median(std::vector<double> values);

/// "+3.1 %"; "not predicted"; nothing where both are nothing.
[[nodiscard]] std::string error_text(const Pair& pair);
/// {"predicted", "measured", "error"}; no error of what was not predicted.
[[nodiscard]] Json pair_json(const Pair& pair);
[[nodiscard]] Json pairs_json(const Pairs& pairs);

/// Seconds in which each lane works, from those of its calls (`operators`): compute, the communication inside blocks, copies over the host link.
[[nodiscard]] Pairs lanes_of(const Pairs& operators);

/// Rows over the mean: of the busiest expert and, on several expert ranks, of the busiest rank, in the median layer and where they are most. `served`: the load measured, as a
/// trace; the problem's own is drawn with the noise of a step's sequences (docs/load.md). Empty for models without experts.
[[nodiscard]] Pairs expert_loads(const Problem& problem, const Plan& plan, const LoadModel& served);

/// When a rank's last pass ends: behind it come the update and what else a step does once.
[[nodiscard]] Picoseconds passes_end(const StepTimeline& timeline, std::int32_t rank);

/// Most bytes in each tenth of a step's passes, each side by its own times up to its `passes_end`: rank 0 as played, and `measured`, points {"start_ps", "bytes"} that hold until the
/// next. Throws InputError for points that are none.
[[nodiscard]] std::vector<Pair> memory_over_passes(const MemoryTimeline& predicted, Picoseconds predicted_end, const Json& measured, Picoseconds measured_end, const std::string& where);

}  // namespace moeplan::cli
