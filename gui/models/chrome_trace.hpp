#pragma once
/// Chrome traces as timelines: what `moeplan simulate --trace` and `moeplan compare --trace` write, what Kineto (the profiler of PyTorch) and
/// other writers of the Trace Event Format give. Read as a stream: a trace of millions of events never exists as a tree of JSON values.

#include <cstdint>
#include <functional>
#include <string>

#include "core/spec/timeline.hpp"

namespace moeplan::gui {

/// Whether the file's beginning looks like a Chrome trace; reads 64 KiB.
[[nodiscard]] bool looksLikeChromeTrace(const std::string& path);

/// Complete events (ph X, or B with E) become events, arrows (s, f) become flows; other kinds of events are left out. Operator calls of one
/// block (`args.block`, as moeplan writes them) become one event with parts. Ranks: moeplan's process numbers, "rank N" in a process name,
/// `distributedInfo.rank`, else processes in order. Lanes: moeplan's thread names; kernels of others go by what they are (communication by
/// NCCL's name, copies, compute), their host threads to lanes of their own. Of a trace of both (`compare --trace`) the measured half.
/// Times start at the earliest event and are exact to the picosecond. `progress(share)` is called now and then and may throw.
/// Throws InputError with the number of the event that is wrong.
[[nodiscard]] StepTimeline chromeTrace(const std::string& path, const std::function<void(double)>& progress = {});

}  // namespace moeplan::gui
