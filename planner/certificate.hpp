#pragma once
/// Why nothing fits, and what would: the certificate of exit code 3.

#include "planner/planner.hpp"

namespace moeplan {

/// The candidate that came closest, and what it would have needed.
struct NearMiss {
  Plan plan;
  MemoryBreakdown memory;
};

[[nodiscard]] Infeasible certificate(const Problem& problem, const NearMiss& nearest, const SearchOptions& options);

}  // namespace moeplan
