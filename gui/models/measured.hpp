#pragma once
/// A measured step laid over the predicted one: which events are the same, and by how much each is off.

#include <optional>
#include <unordered_map>

#include "core/json.hpp"
#include "core/spec/timeline.hpp"

namespace moeplan::gui {

/// A StepTimeline from a file: a timeline of `simulate --timeline`, or the one inside a measured run. Nothing if the file is another
/// kind of document. Throws InputError.
[[nodiscard]] std::optional<StepTimeline> timelineFile(const std::string& path);

/// Per event of `one`, the index of its counterpart in `other`, or -1: same rank, lane, name, layer and micro-batch, in order.
[[nodiscard]] std::vector<std::int32_t> counterparts(const StepTimeline& one, const StepTimeline& other);

}  // namespace moeplan::gui
