#include "gui/models/measured.hpp"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <tuple>

#include "core/read.hpp"
#include "gui/models/chrome_trace.hpp"

namespace moeplan::gui {

namespace {

/// Tables that events, parts and arrows point into hold what they point at.
void check(const StepTimeline& t, const std::string& path) {
  const auto inside = [&](std::int32_t i, std::size_t size, bool none, const char* what) {
    if (i < (none ? -1 : 0) || i >= static_cast<std::int32_t>(size)) throw InputError(path + ": events", fmt::format("{} {} is outside its table of {}", what, i, size), "write the file again");
  };
  for (const TimelineEvent& e : t.events) {
    inside(e.rank, t.ranks.size(), false, "rank"), inside(e.lane, t.lanes.size(), false, "lane"), inside(e.name, t.names.size(), false, "name");
    inside(e.detail, t.details.size(), true, "detail"), inside(e.call, t.calls.size(), true, "call");
  }
  for (const TimelineDetail& d : t.details)
    for (const TimelinePart& p : d.parts) inside(p.name, t.names.size(), false, "name");
  for (const TimelineFlow& f : t.flows) inside(f.from, t.events.size(), false, "flow"), inside(f.to, t.events.size(), false, "flow"), inside(f.name, t.names.size(), false, "name");
}

}  // namespace

std::optional<StepTimeline> timelineFile(const std::string& path) {
  const Json json = load_json(path, {.max_bytes = std::size_t{1} << 30, .max_values = 40'000'000});
  if (!json.is_object()) return std::nullopt;
  const Place top(json, path);
  const bool whole = json.contains("format") && json.at("format").is_string() && json.at("format").get<std::string>() == "moeplan.timeline.v1";
  if (!whole && !json.contains("timeline")) return std::nullopt;
  const Place place = whole ? top : top.at("timeline");
  if (!whole && place.value().is_null()) return std::nullopt;
  StepTimeline out = read<StepTimeline>(place);
  check(out, path);
  return out;
}

StepTimeline readTimeline(const std::string& path, const std::function<void(double)>& progress) {
  if (looksLikeChromeTrace(path)) return chromeTrace(path, progress);
  if (auto t = timelineFile(path)) return *std::move(t);
  throw InputError(path, "holds no timeline", "give measured.json of `moeplan run -o`, a file of `moeplan simulate --timeline`, or a Chrome trace");
}

bool looksLikeTimeline(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string head(512, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, in.gcount())));
  return head.find("moeplan.timeline.v1") != std::string::npos || head.find("moeplan.measured.v1") != std::string::npos || looksLikeChromeTrace(path);
}

Counterparts counterparts(const StepTimeline& predicted, const StepTimeline& measured) {
  using Key = std::tuple<std::int64_t, std::string_view, std::string_view, std::int32_t, std::int32_t, bool>;
  // A block's pass is named by its direction in one and by the kind of its event in the other.
  const auto block = [](std::string_view name) {
    for (const std::string_view prefix : {"forward of ", "backward of ", "weight gradients of "})
      if (name.starts_with(prefix)) return name.substr(prefix.size());
    return name;
  };
  const auto key = [&](const StepTimeline& t, const TimelineEvent& e, std::int64_t rank) {
    return Key{rank, t.lanes[static_cast<std::size_t>(e.lane)], block(t.names[static_cast<std::size_t>(e.name)]), e.layer, e.micro_batch, e.kind == Activity::forward};
  };
  const auto standIn = [&](std::int64_t rank) {
    std::int64_t out = predicted.ranks.empty() ? rank : predicted.ranks.front().rank;
    for (const TimelineRank& r : predicted.ranks)
      if (r.rank <= rank) out = std::max(out, r.rank);
    return out;
  };
  std::map<Key, std::vector<std::int32_t>> there;
  for (std::size_t i = 0; i < predicted.events.size(); ++i) there[key(predicted, predicted.events[i], predicted.ranks[static_cast<std::size_t>(predicted.events[i].rank)].rank)].push_back(static_cast<std::int32_t>(i));
  std::map<std::int64_t, std::map<Key, std::vector<std::int32_t>>> here;   // per measured rank
  for (std::size_t j = 0; j < measured.events.size(); ++j) {
    const std::int64_t rank = measured.ranks[static_cast<std::size_t>(measured.events[j].rank)].rank;
    here[rank][key(measured, measured.events[j], standIn(rank))].push_back(static_cast<std::int32_t>(j));
  }
  Counterparts out{.toMeasured = std::vector<std::int32_t>(predicted.events.size(), -1), .toPredicted = std::vector<std::int32_t>(measured.events.size(), -1),
                   .predicted = std::vector<Picoseconds>(measured.events.size(), 0), .stretches = std::vector<std::int32_t>(measured.events.size(), 0)};
  for (const auto& [rank, events] : here)
    for (const auto& [which, list] : events) {
      const auto found = there.find(which);
      if (found == there.end()) continue;
      const std::vector<std::int32_t>& of = found->second;
      const bool whole = list.size() == 1 && of.size() > 1;
      for (std::size_t k = 0; k < std::min(list.size(), of.size()); ++k) {
        const auto j = static_cast<std::size_t>(list[k]);
        const TimelineEvent &first = predicted.events[static_cast<std::size_t>(of[k])], &last = predicted.events[static_cast<std::size_t>(whole ? of.back() : of[k])];
        out.toPredicted[j] = of[k];
        out.predicted[j] = last.end() - first.start;
        out.stretches[j] = whole ? static_cast<std::int32_t>(of.size()) : 1;
        ++out.matched;
        out.predictedTime += out.predicted[j];
        out.measuredTime += measured.events[j].duration;
        for (std::size_t m = k; m < (whole ? of.size() : k + 1); ++m)
          if (auto& to = out.toMeasured[static_cast<std::size_t>(of[m])]; to < 0) to = list[k];
      }
    }
  return out;
}

}  // namespace moeplan::gui
