#include <fmt/format.h>

#include "core/spec/plan.hpp"

namespace moeplan::rules_of {

/// With fewer micro-batches than stages some stages never work: such a plan is dominated by fewer stages.
std::optional<std::string> pipeline_is_filled(const Problem&, const Plan& plan) {
  if (plan.micro_batches >= plan.parallelism.pp) return std::nullopt;
  return fmt::format("{} micro-batches do not fill {} pipeline stages", plan.micro_batches, plan.parallelism.pp);
}
}  // namespace moeplan::rules_of
