#pragma once
/// A plan played through time, with the parts of the reports that `simulate` and `explain` share.

#include "cli/command.hpp"
#include "planner/planner.hpp"
#include "sim/engine/idle.hpp"
#include "sim/program/program.hpp"

namespace moeplan::cli {

struct SimulationOptions {
  bool contention = true;      ///< transfers share links
  bool interference = false;   ///< communication and compute of a device slow each other
  Seconds host_launch{};       ///< of each call
  std::optional<std::int64_t> straggler;   ///< a rank whose compute is slower; its stage waits for it at every exchange and collective
  double straggler_slowdown = 1;
};

struct Simulation {
  std::vector<Program> stages;
  Job job;
  Played played;
  CriticalPath critical;
  std::vector<RankIdle> idle;
};

/// One rank per stage, at the load at which the planner's median step is priced. Throws InputError for a straggler outside the plan.
[[nodiscard]] Simulation simulate(const LoadedPlan& loaded, const SimulationOptions& options);

[[nodiscard]] std::string critical_path_text(const Context& context, const Simulation& simulation);
/// Each stage: busy share, `peak` (by position; none: no column), causes of idle time.
[[nodiscard]] std::string idle_text(const Context& context, const Simulation& simulation, const std::vector<Bytes>& peak);
[[nodiscard]] Json times_json(const ActivityTimes& times);

/// "schedule interleaved x 4", with the pieces of an exchange; empty for plain 1F1B.
[[nodiscard]] std::string schedule_text(const Plan& plan);

}  // namespace moeplan::cli
