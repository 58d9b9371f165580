#include <fmt/format.h>

#include "core/spec/plan.hpp"

namespace moeplan::rules_of {

/// What moves to the host needs a host of known size and a link to it.
std::optional<std::string> host_takes(const Problem& problem, const Plan& plan) {
  if (plan.offload == Offload::none) return std::nullopt;
  const ClusterSpec& c = problem.cluster;
  if (c.host_memory.value > 0 && c.device.host_link.value > 0) return std::nullopt;
  return fmt::format("offload {} on {}, whose {} is not known", name_of(plan.offload), c.name, c.host_memory.value > 0 ? "host link" : "host memory");
}
}  // namespace moeplan::rules_of
