#pragma once
/// The candidates of a problem, as distinct plans: degrees that fold onto the cluster, micro-batch, recompute, storage.

#include "planner/planner.hpp"

namespace moeplan {

/// Candidates whose blocks lower equal: they share micro-batch, expert and tensor degrees, recompute and storage.
struct CandidateGroup {
  std::vector<Plan> plans;
};

/// Enumerates every combination of degrees that divide the cluster; rules decide later. Deterministic order.
/// Throws InputError if the pinned degrees leave none (what they multiply to, and how many devices there are).
[[nodiscard]] std::vector<CandidateGroup> candidates(const Problem& problem, const SearchOptions& options);

/// Where the workload names no global batch: one sequence per device, eight times. The same for every candidate, so that their
/// steps do the same work.
[[nodiscard]] std::int64_t default_global_batch(const Problem& problem);

/// `layers` over `stages`: equal parts, the remainder to the stages that hold neither embedding nor head.
[[nodiscard]] std::vector<std::int64_t> even_stages(std::int64_t layers, int stages);

/// Frozen storages worth trying: bf16, and what the checkpoint ships if the runtime runs it.
[[nodiscard]] std::vector<DType> storages(const Problem& problem);

}  // namespace moeplan
