#pragma once
/// A plan played through one step: lowered, priced and run by the engine, one rank per pipeline stage.

#include "core/spec/plan.hpp"
#include "sim/engine/idle.hpp"
#include "sim/engine/memory_timeline.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

struct SimulationOptions {
  bool contention = true;                  ///< transfers share links and hold multiprocessors beside compute; without, each and compute have theirs to themselves
  bool interference = false;               ///< they share the memory's bandwidth too, and compute slows exchanges
  Seconds host_launch{};                   ///< of each call
  std::optional<std::int64_t> straggler = {};   ///< a rank whose compute is slower; its stage waits for it at every exchange and collective
  double straggler_slowdown = 1;
  bool high_load = false;                  ///< expert load at its 95th percentile instead of the median at which the planner prices a step
};

/// A played plan with what its reports need.
struct Simulation {
  std::vector<Program> stages;
  Job job;
  Played played;
  CriticalPath critical;
  std::vector<RankIdle> idle;
};

/// Throws InputError for a straggler outside the plan.
[[nodiscard]] Simulation simulate(const Problem& problem, const Plan& plan, const SimulationOptions& options = {});

/// Memory of each played rank through the step.
[[nodiscard]] std::vector<MemoryTimeline> memory_timelines(const Simulation& simulation, const Problem& problem, const Plan& plan);

}  // namespace moeplan
