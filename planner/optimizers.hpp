#pragma once
/// A search over optimizers too. The optimizer is the workload's: each is a problem of its own, whose plans are ranked together.

#include <algorithm>

#include "planner/planner.hpp"

namespace moeplan {

/// Whether `ask` holds for the problem under any optimizer.
template <class Ask>
[[nodiscard]] bool any_optimizer(Problem problem, SearchOptions options, const Ask& ask) {
  options.search_optimizer = false;
  return std::any_of(EnumNames<OptimizerKind>::names.begin(), EnumNames<OptimizerKind>::names.end(), [&](const auto& each) {
    problem.workload.optimizer = each.first;
    return ask(problem, options);
  });
}

/// What `plan` answers over all optimizers; Answer::optimizers says which one a plan has.
[[nodiscard]] Answer plan_over_optimizers(const Problem& problem, const SearchOptions& options);

}  // namespace moeplan
