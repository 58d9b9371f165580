#pragma once
/// The candidates of a problem, as distinct plans: degrees that fold onto the cluster, micro-batch, recompute, storage.

#include "planner/planner.hpp"
#include "planner/shard_table.hpp"

namespace moeplan {

/// Candidates whose blocks lower equal: they share micro-batch, expert and tensor degrees, recompute and storage.
struct CandidateGroup {
  std::vector<Plan> plans;
};

/// The same candidates factorised: every block with every layout of its degrees and every treatment of gathered weights.
struct Grid {
  struct Block {
    Plan plan;                              ///< what its blocks lower from; the rest is filled in by a layout
    std::size_t layouts = 0;                ///< index into `layouts`
  };
  std::vector<Block> blocks;
  std::vector<std::vector<Parallelism>> layouts;   ///< of equal tensor, context, expert and expert-tensor degrees
  std::vector<bool> reshards;
  std::vector<std::int64_t> prefetches;
  Splits splits;                            ///< layers of the virtual stages, by number of stages
  bool wide = false;
  std::optional<Schedule> pinned_schedule;
  bool pinned_reshard = false;              ///< then it is taken even where it changes nothing

  /// Whether (reshard, prefetch) is one more plan of a layout: where nothing is gathered they change nothing, and the first of them counts.
  [[nodiscard]] bool distinct(bool gathers, bool reshard, std::int64_t prefetch) const {
    return gathers || ((reshard || pinned_reshard) && prefetch == prefetches.front());
  }

  /// Orders in which a block's passes are tried over `pp` stages of `virtual_stages` each.
  [[nodiscard]] std::vector<Schedule> orders(const Plan& block, int pp, int virtual_stages) const;
};
/// Throws as `candidates` does.
[[nodiscard]] Grid grid(const Problem& problem, const SearchOptions& options);

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
