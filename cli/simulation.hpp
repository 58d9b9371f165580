#pragma once
/// The parts of a played plan's report that `simulate` and `explain` share.

#include "cli/command.hpp"
#include "planner/planner.hpp"
#include "planner/simulation.hpp"

namespace moeplan::cli {

[[nodiscard]] std::string critical_path_text(const Context& context, const Simulation& simulation);
/// Each stage: busy share, `peak` (by position; none: no column), causes of idle time.
[[nodiscard]] std::string idle_text(const Context& context, const Simulation& simulation, const std::vector<Bytes>& peak);
[[nodiscard]] Json times_json(const ActivityTimes& times);

/// "schedule interleaved x 4", with the pieces of an exchange; empty for plain 1F1B.
[[nodiscard]] std::string schedule_text(const Plan& plan);

}  // namespace moeplan::cli
