#pragma once
/// A problem and a forecast as text, shared by `plan`, `explain` and `simulate`.

#include "cli/command.hpp"
#include "planner/describe.hpp"

namespace moeplan::cli {

/// What the problem is, in two or three lines.
[[nodiscard]] std::string problem_text(const Problem& problem);
/// Where memory and time go, side by side.
[[nodiscard]] std::string breakdown_text(const Context& context, const Problem& problem, const Plan& plan, const Forecast& forecast);

/// The clock at which a plan's calls are priced, in words, a line; empty where the profile says nothing of power.
[[nodiscard]] std::string clock_text(const Problem& problem, const Plan& plan);

}  // namespace moeplan::cli
