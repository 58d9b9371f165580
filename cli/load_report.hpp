#pragma once
/// The part of `simulate` that draws expert loads: its options, its text, its JSON.

#include "cli/command.hpp"
#include "planner/load_draws.hpp"

namespace moeplan::cli {

struct LoadOptions {
  std::int64_t draws = 16;
  std::optional<std::int64_t> seed;
  std::string placement = "contiguous", placed_on, served;
  std::int64_t replicas = 0;
  std::optional<double> capacity_factor;
};

void add_load_options(CLI::App& app, LoadOptions& options);

/// Nothing where no draws are asked for or the model routes nothing. `problem`'s seed is replaced by the option's.
[[nodiscard]] std::optional<LoadDraws> drawn_loads(const Context& context, Problem& problem, const Plan& plan, const LoadOptions& options);

[[nodiscard]] Json load_json_report(const LoadDraws& draws);
[[nodiscard]] std::string load_text(const Context& context, const Problem& problem, const LoadDraws& draws);

}  // namespace moeplan::cli
