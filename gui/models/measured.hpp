#pragma once
/// A measured step laid over the predicted one: which events are the same, and by how much each is off.

#include <functional>
#include <optional>
#include <vector>

#include "core/json.hpp"
#include "core/spec/timeline.hpp"

namespace moeplan::gui {

/// A StepTimeline from a file: a timeline of `simulate --timeline`, or the one inside a measured run. Nothing if the file is another
/// kind of document. Throws InputError.
[[nodiscard]] std::optional<StepTimeline> timelineFile(const std::string& path);

/// The same of any file that holds a step: also Chrome traces (chrome_trace.hpp). Throws InputError where there is none.
[[nodiscard]] StepTimeline readTimeline(const std::string& path, const std::function<void(double)>& progress);

/// Whether a file's beginning says that it holds a step; what it then holds is for `readTimeline` to judge.
[[nodiscard]] bool looksLikeTimeline(const std::string& path);

/// Which events of a predicted and a measured step are the same: rank (or the played rank that stands for it), lane, name, layer, micro-batch
/// and direction, in order. Predictions split a pass where communication waits for it; measured in one stretch, it counts against all of them.
struct Counterparts {
  std::vector<std::int32_t> toMeasured, toPredicted;   ///< per event; -1: none. Of several predicted stretches, the first.
  std::vector<Picoseconds> predicted;                  ///< per measured event: time predicted for it, from the first start to the last end
  std::vector<std::int32_t> stretches;                 ///< per measured event: in how many pieces
  std::int64_t matched = 0;                            ///< measured events
  Picoseconds predictedTime = 0, measuredTime = 0;     ///< of all of them
};
[[nodiscard]] Counterparts counterparts(const StepTimeline& predicted, const StepTimeline& measured);

}  // namespace moeplan::gui
