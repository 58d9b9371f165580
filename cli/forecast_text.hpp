#pragma once
/// A problem and a forecast as text, shared by `plan`, `explain` and `simulate`.

#include "cli/command.hpp"
#include "planner/describe.hpp"

namespace moeplan::cli {

/// What the problem is, in two or three lines.
[[nodiscard]] std::string problem_text(const Problem& problem);
/// Where memory and time go, side by side.
[[nodiscard]] std::string breakdown_text(const Context& context, const Problem& problem, const Forecast& forecast);

}  // namespace moeplan::cli
