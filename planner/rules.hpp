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

/// Rules by which the space leaves out what cannot be lowered.
namespace rules_of {
[[nodiscard]] std::optional<std::string> tensor_divides(const Problem& problem, const Plan& plan);
[[nodiscard]] std::optional<std::string> heads_exchange(const Problem& problem, const Plan& plan);
[[nodiscard]] std::optional<std::string> context_divides(const Problem& problem, const Plan& plan);
}

/// The first rule that rejects the plan.
[[nodiscard]] std::optional<Rejection> first_rejection(const Problem& problem, const Plan& plan);

}  // namespace moeplan
