#pragma once
/// A timeline as text: one line per pipeline stage, one character per slice of the step.

#include <string>

#include "core/spec/timeline.hpp"

namespace moeplan {

/// Each slice shows what its compute lane did for most of it: `F` forward, `B` backward, `r` recompute, `O` optimizer, `.` idle; where
/// it was idle for most of it and the rank communicated, `e` expert exchange, `t` tensor or context, `w` weights or gradients.
/// At most `ranks` lines, evenly picked; the last line is the time axis.
[[nodiscard]] std::string gantt(const StepTimeline& timeline, std::size_t width = 80, std::size_t ranks = 16);

}  // namespace moeplan
