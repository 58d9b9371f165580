#pragma once
/// The options that describe a problem and pin a plan's degrees, shared by the commands that take them.

#include <memory>

#include "cli/command.hpp"
#include "planner/planner.hpp"
#include "planner/problem.hpp"

namespace moeplan::cli {

/// Options as typed; `request()` and `pins()` turn words into values.
struct ProblemOptions {
  ProblemRequest named;
  bool pad = false;
  std::string model, cluster, device, profile, method, optimizer, frozen_storage, recompute, schedule, offload = "none", context_exchange, state_passing, dispatch, route, capacity, overflow, placement,
      flops = "causal";
  std::optional<std::int64_t> gpus;
  Pins pins;

  /// Throws InputError for a word that is not known.
  [[nodiscard]] ProblemRequest request() const;
  [[nodiscard]] Pins pinned() const;
  /// Pins, and what is searched besides: the flags that say `auto`.
  [[nodiscard]] SearchOptions search() const;
};

/// Declares MODEL and everything that overrides the files.
[[nodiscard]] std::shared_ptr<ProblemOptions> add_problem_options(CLI::App& app);

}  // namespace moeplan::cli
