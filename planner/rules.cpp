#include "planner/rules.hpp"

#include <array>

namespace moeplan {

namespace rules_of {
std::optional<std::string> batch_divides(const Problem&, const Plan&);
std::optional<std::string> stages_hold_layers(const Problem&, const Plan&);
std::optional<std::string> pipeline_is_filled(const Problem&, const Plan&);
std::optional<std::string> experts_divide(const Problem&, const Plan&);
std::optional<std::string> storage_runs(const Problem&, const Plan&);
std::optional<std::string> schedule_fits(const Problem&, const Plan&);
std::optional<std::string> window_reaches(const Problem&, const Plan&);
std::optional<std::string> host_takes(const Problem&, const Plan&);
std::optional<std::string> exchange_runs(const Problem&, const Plan&);
}  // namespace rules_of

std::span<const Rule> rules() {
  static constexpr std::array list{Rule{"batch_divides", rules_of::batch_divides},           Rule{"stages_hold_layers", rules_of::stages_hold_layers},
                                   Rule{"pipeline_is_filled", rules_of::pipeline_is_filled}, Rule{"experts_divide", rules_of::experts_divide},
                                   Rule{"context_divides", rules_of::context_divides},       Rule{"storage_runs", rules_of::storage_runs},
                                   Rule{"tensor_divides", rules_of::tensor_divides},         Rule{"schedule_fits", rules_of::schedule_fits},
                                   Rule{"heads_exchange", rules_of::heads_exchange},         Rule{"window_reaches", rules_of::window_reaches},
                                   Rule{"host_takes", rules_of::host_takes},                 Rule{"exchange_runs", rules_of::exchange_runs}};
  return list;
}

std::optional<Rejection> first_rejection(const Problem& problem, const Plan& plan) {
  for (const Rule& rule : rules())
    if (auto reason = rule.reject(problem, plan)) return Rejection{std::string(rule.name), std::move(*reason)};
  return std::nullopt;
}

}  // namespace moeplan
