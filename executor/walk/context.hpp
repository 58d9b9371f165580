#pragma once
/// Sequences over context ranks: which tokens a rank has. A sequence is cut into equal runs of consecutive tokens; rank
/// r of n has run r, or runs r and 2n - 1 - r where late queries cost more than early ones (docs/program.md).

#include "executor/ranks/place.hpp"
#include "executor/walk/batch.hpp"

namespace moeplan {

struct ContextRuns {
  std::int64_t sequences = 1, ranks = 1, per_rank = 1;
  /// Number in the sequence of a rank's j-th run.
  [[nodiscard]] std::int64_t run(std::int64_t rank, std::int64_t j) const {
    return j == 0 ? rank : 2 * ranks - 1 - rank;
  }
  /// The rank that has a run.
  [[nodiscard]] std::int64_t owner(std::int64_t run) const { return run < ranks ? run : 2 * ranks - 1 - run; }
  /// Calls f(row of the rank's, row of the whole micro-batch, rows) for each run of a rank that has `rows` rows in all.
  template <class F>
  void each(std::int64_t rank, std::int64_t rows, const F& f) const {
    const std::int64_t length = rows / (sequences * per_rank);
    for (std::int64_t s = 0; s < sequences; ++s)
      for (std::int64_t j = 0; j < per_rank; ++j)
        f((s * per_rank + j) * length, (s * ranks * per_rank + run(rank, j)) * length, length);
  }
};

[[nodiscard]] ContextRuns context_runs_of(const Problem& problem, const Plan& plan);

/// Of a micro-batch, the tokens of context rank `rank`, with their positions. Throws InputError for packed documents.
[[nodiscard]] Batch context_share(const Batch& batch, const ContextRuns& runs, std::int64_t rank);

}  // namespace moeplan
