#pragma once
/// `moeplan run` before it runs: which rank this process would be and why, and files that start the plan on a cluster.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "cli/command.hpp"
#include "executor/rendezvous/environment.hpp"
#include "planner/planner.hpp"

namespace moeplan::cli {

struct LaunchOptions {
  bool explain_env = false;
  std::string kind, directory = ".", name = "moeplan", partition, account, time = "1-00:00:00", image, host;
  std::optional<std::string> token_file;
  RankFlags flags;
};

void add_launch_options(CLI::App& app, LaunchOptions& options);

/// For each variable that launchers set: used or not, and why.
[[nodiscard]] Output explain_environment(const LaunchOptions& options);
/// Writes the file; `app` holds what was said of the run itself, which each rank is told again.
[[nodiscard]] Output write_launch(const CLI::App& app, const LaunchOptions& options, const LoadedPlan& loaded);

}  // namespace moeplan::cli
