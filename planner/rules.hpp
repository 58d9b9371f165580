#pragma once
/// Rules that reject a candidate before it is priced. One rule a file in planner/rules, one line in the list.

#include <span>

#include "core/spec/plan.hpp"
#include "core/spec/results.hpp"

namespace moeplan {

struct Rule {
  std::string_view name;
  std::optional<std::string> (*reject)(const Problem&, const Plan&);   ///< the reason in numbers; nothing if it passes
};

[[nodiscard]] std::span<const Rule> rules();

/// The first rule that rejects the plan.
[[nodiscard]] std::optional<Rejection> first_rejection(const Problem& problem, const Plan& plan);

}  // namespace moeplan
