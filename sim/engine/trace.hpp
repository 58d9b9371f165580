#pragma once
/// A timeline as a Chrome trace: JSON that Perfetto, chrome://tracing and Holistic Trace Analysis read. One process per rank, one
/// thread per lane; events of a lane that overlap go to further threads of that lane, since a thread's events must nest.
/// Names of categories and arguments are Kineto's, as HTA's event_args_1.0.0.yaml lists them.

#include <optional>
#include <string>

#include "core/spec/timeline.hpp"

namespace moeplan {

struct TraceOptions {
  std::optional<std::int32_t> only_rank;   ///< position in StepTimeline::ranks: HTA wants one file per rank
  bool parts = true;                       ///< operator calls inside a step; without, a step is one event named by its block
};

/// Times in microseconds with six decimals, so picoseconds are kept. Text of names is escaped; the result is ASCII.
[[nodiscard]] std::string chrome_trace(const StepTimeline& timeline, const TraceOptions& options = {});

}  // namespace moeplan
