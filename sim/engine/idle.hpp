#pragma once
/// Why a step takes as long as it does: the chain of events that nothing could have shortened without shortening the step, and,
/// per rank, what its compute lane waited for.

#include "sim/engine/engine.hpp"

namespace moeplan {

/// Time per activity, picoseconds.
using ActivityTimes = std::array<Picoseconds, kActivities>;

struct CriticalPath {
  std::vector<std::int32_t> records;    ///< indices into Played::records, first to last; each starts when the one before ends
  ActivityTimes time{};                 ///< sums to the step
};

struct RankIdle {
  Picoseconds busy = 0;                 ///< compute lane
  ActivityTimes waiting{};              ///< compute lane idle, by what was under way that it waited for, on this rank or between ranks
  Picoseconds bubble = 0;               ///< idle while other stages computed
  [[nodiscard]] Picoseconds idle() const {
    Picoseconds sum = bubble;
    for (const Picoseconds w : waiting) sum += w;
    return sum;
  }
};

[[nodiscard]] CriticalPath critical_path(const Job& job, const Played& played);

/// Per rank; busy + idle = step. A gap is shared out along the chain of causes of the step that ends it: what of the chain lies
/// in the gap. What the step's end leaves over counts as bubble.
[[nodiscard]] std::vector<RankIdle> idle_time(const Job& job, const Played& played);

}  // namespace moeplan
