#pragma once
/// Plans and problems as JSON and as short text, the same for the command line and the window.

#include "core/spec/forecast.hpp"
#include "planner/measured_shares.hpp"

namespace moeplan {

/// One element of `plans`.
[[nodiscard]] Json plan_json(const RankedPlan& ranked);
/// The problem without its bulk: inputs in full, the profile by name and source, and what of its losses beside calls these plans were priced with.
[[nodiscard]] Json problem_json(const Problem& problem, std::span<const Plan> plans);

/// "pp2 ep64 dp4x16": the degrees that are not 1.
[[nodiscard]] std::string layout_text(const Parallelism& p);
/// ", interleaved x2, 5 to 8 layers, 2 pieces": what else of the order of passes and of the expert exchange is not the plainest.
[[nodiscard]] std::string order_text(const Plan& plan);
/// "LoRA r64 on attention, dense".
[[nodiscard]] std::string tuning_text(const Workload& workload);

}  // namespace moeplan
