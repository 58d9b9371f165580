#include "gui/models/memory_area.hpp"

#include <algorithm>
#include <map>

namespace moeplan::gui {
namespace {

struct Change {
  Picoseconds at;
  std::int32_t order;
  std::int32_t block;   ///< index + 1 comes, negative goes
};

std::vector<Change> changesOf(const MemoryTimeline& t) {
  std::vector<Change> out;
  out.reserve(2 * t.blocks.size());
  for (std::size_t i = 0; i < t.blocks.size(); ++i) {
    const auto b = static_cast<std::int32_t>(i + 1);
    out.push_back({t.blocks[i].from, t.blocks[i].alloc_order, b});
    out.push_back({t.blocks[i].until, t.blocks[i].free_order, -b});
  }
  std::sort(out.begin(), out.end(), [](const Change& a, const Change& b) { return std::pair(a.at, a.order) < std::pair(b.at, b.order); });
  return out;
}

}  // namespace

MemoryArea areaOf(const MemoryTimeline& t, std::size_t points) {
  MemoryArea out;
  const std::vector<Change> changes = changesOf(t);
  if (changes.empty()) return out;
  const Picoseconds end = std::max<Picoseconds>(1, changes.back().at);
  std::array<std::int64_t, kMemoryCategories> now{};
  std::int64_t sum = 0, highest = -1;
  std::size_t bin = 0;
  bool open = false;
  const auto keep = [&](const Change& c, std::int32_t count) {
    out.seconds.push_back(to_seconds(c.at).value);
    for (std::size_t k = 0; k < kMemoryCategories; ++k) out.bytes[k].push_back(static_cast<double>(now[k]));
    out.total.push_back(static_cast<double>(sum));
    out.change.push_back(count);
  };
  const auto replaceLast = [&](const Change& c, std::int32_t count) {
    out.seconds.pop_back(), out.total.pop_back(), out.change.pop_back();
    for (auto& column : out.bytes) column.pop_back();
    keep(c, count);
  };
  // Two moments a bin: the highest so far in it, and where it ends.
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const Change& c = changes[i];
    const MemoryBlock& b = t.blocks[static_cast<std::size_t>(std::abs(c.block) - 1)];
    const std::int64_t delta = c.block > 0 ? b.bytes.value : -b.bytes.value;
    now[static_cast<std::size_t>(b.category)] += delta;
    sum += delta;
    // Everything is given back at the end: that is no moment of the step.
    if (c.at >= end && c.block < 0) break;
    const auto here = static_cast<std::size_t>(static_cast<double>(c.at) / static_cast<double>(end) * static_cast<double>(points / 2));
    const bool fresh = !open || here != bin;
    if (fresh) { highest = -1; bin = here; open = true; }
    const auto count = static_cast<std::int32_t>(i + 1);
    if (fresh) keep(c, count);
    else if (sum > highest) replaceLast(c, count);
    else if (i + 1 == changes.size() || static_cast<std::size_t>(static_cast<double>(changes[i + 1].at) / static_cast<double>(end) * static_cast<double>(points / 2)) != here) keep(c, count);
    highest = std::max(highest, sum);
  }
  out.peak = static_cast<std::size_t>(std::max_element(out.total.begin(), out.total.end()) - out.total.begin());
  return out;
}

std::vector<LiveBuffer> liveAt(const MemoryTimeline& t, std::int32_t change) {
  const std::vector<Change> changes = changesOf(t);
  std::vector<bool> live(t.blocks.size(), false);
  for (std::int32_t i = 0; i < change && static_cast<std::size_t>(i) < changes.size(); ++i) {
    const Change& c = changes[static_cast<std::size_t>(i)];
    live[static_cast<std::size_t>(std::abs(c.block) - 1)] = c.block > 0;
  }
  std::map<std::pair<MemoryCategory, std::int32_t>, LiveBuffer> merged;
  for (std::size_t i = 0; i < t.blocks.size(); ++i) {
    if (!live[i] || t.blocks[i].bytes.value <= 0) continue;
    const MemoryBlock& b = t.blocks[i];
    const auto [it, fresh] = merged.try_emplace({b.category, b.name});
    LiveBuffer& buffer = it->second;
    if (fresh) buffer = {.category = b.category, .name = QString::fromStdString(t.names[static_cast<std::size_t>(b.name)]), .bytes = b.bytes, .count = 1};
    else buffer.bytes += b.bytes, ++buffer.count;
  }
  std::vector<LiveBuffer> out;
  for (auto& [key, buffer] : merged) out.push_back(std::move(buffer));
  std::stable_sort(out.begin(), out.end(), [](const LiveBuffer& a, const LiveBuffer& b) { return a.bytes > b.bytes; });
  return out;
}

}  // namespace moeplan::gui
