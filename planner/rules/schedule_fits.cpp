#include "sim/program/schedules/schedule.hpp"

namespace moeplan::rules_of {

/// Virtual stages and micro-batches must be ones that the schedule has an order for.
std::optional<std::string> schedule_fits(const Problem&, const Plan& plan) {
  std::string fault = schedule_fault(plan);
  if (fault.empty()) return std::nullopt;
  return fault;
}
}  // namespace moeplan::rules_of
