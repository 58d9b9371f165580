#pragma once
/// A rank's memory over the step as a stacked area: bytes per category at the moments where they change, thinned to what a screen
/// shows without losing any bin's highest moment; and the buffers that live at one of them.

#include <QString>
#include <vector>

#include "sim/engine/memory_timeline.hpp"

namespace moeplan::gui {

struct MemoryArea {
  std::vector<double> seconds;                                        ///< moments, ascending
  std::array<std::vector<double>, kMemoryCategories> bytes;           ///< per category at each moment
  std::vector<double> total;
  std::vector<std::int32_t> change;                                   ///< how many allocations and frees had happened
  std::size_t peak = 0;                                               ///< index of the highest moment
};
[[nodiscard]] MemoryArea areaOf(const MemoryTimeline& timeline, std::size_t points = 3000);

struct LiveBuffer {
  MemoryCategory category = MemoryCategory::activations;
  QString name;
  Bytes bytes{};
  std::int64_t count = 1;                                             ///< buffers of this name and category together
};
/// What lives after that many changes (MemoryArea::change), largest first; their sum is the area's total there.
[[nodiscard]] std::vector<LiveBuffer> liveAt(const MemoryTimeline& timeline, std::int32_t change);

}  // namespace moeplan::gui
