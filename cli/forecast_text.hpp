#pragma once
/// A plan and its forecast as JSON (the fields of docs/cli.md) and as text, shared by `plan` and `explain`.

#include "cli/command.hpp"
#include "core/spec/forecast.hpp"

namespace moeplan::cli {

/// One element of `plans`.
[[nodiscard]] Json plan_json(const RankedPlan& ranked);
/// The problem without its bulk: inputs in full, the profile by name and source.
[[nodiscard]] Json problem_json(const Problem& problem);

/// "pp2 ep64 dp4x16": the degrees that are not 1.
[[nodiscard]] std::string layout_text(const Parallelism& p);
/// What the problem is, in two or three lines.
[[nodiscard]] std::string problem_text(const Problem& problem);
/// "LoRA r64 on attention, dense".
[[nodiscard]] std::string tuning_text(const Workload& workload);
/// Where memory and time go, side by side.
[[nodiscard]] std::string breakdown_text(const Context& context, const Problem& problem, const Forecast& forecast);

}  // namespace moeplan::cli
