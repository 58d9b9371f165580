#include "gui/models/measured.hpp"

#include <map>
#include <tuple>

#include "core/read.hpp"

namespace moeplan::gui {

std::optional<StepTimeline> timelineFile(const std::string& path) {
  const Json json = load_json(path, {.max_bytes = std::size_t{1} << 30, .max_values = 40'000'000});
  if (!json.is_object()) return std::nullopt;
  const Place top(json, path);
  const bool whole = json.contains("format") && json.at("format").is_string() && json.at("format").get<std::string>() == "moeplan.timeline.v1";
  if (!whole && !json.contains("timeline")) return std::nullopt;
  const Place place = whole ? top : top.at("timeline");
  if (!whole && place.value().is_null()) return std::nullopt;
  StepTimeline out = read<StepTimeline>(place);
  for (const TimelineEvent& e : out.events)
    if (static_cast<std::size_t>(e.rank) >= out.ranks.size() || static_cast<std::size_t>(e.lane) >= out.lanes.size() || static_cast<std::size_t>(e.name) >= out.names.size())
      throw InputError(path + ": events", "an event points outside the tables of ranks, lanes or names", "write the file again");
  return out;
}

std::vector<std::int32_t> counterparts(const StepTimeline& one, const StepTimeline& other) {
  using Key = std::tuple<std::int64_t, std::string, std::string, std::int32_t, std::int32_t>;
  const auto key = [](const StepTimeline& t, const TimelineEvent& e) {
    return Key{t.ranks[static_cast<std::size_t>(e.rank)].rank, t.lanes[static_cast<std::size_t>(e.lane)], t.names[static_cast<std::size_t>(e.name)], e.layer, e.micro_batch};
  };
  std::map<Key, std::pair<std::vector<std::int32_t>, std::size_t>> there;
  for (std::size_t i = 0; i < other.events.size(); ++i) there[key(other, other.events[i])].first.push_back(static_cast<std::int32_t>(i));
  std::vector<std::int32_t> out(one.events.size(), -1);
  for (std::size_t i = 0; i < one.events.size(); ++i) {
    const auto found = there.find(key(one, one.events[i]));
    if (found == there.end() || found->second.second >= found->second.first.size()) continue;
    out[i] = found->second.first[found->second.second++];
  }
  return out;
}

}  // namespace moeplan::gui
