#include "gui/models/chrome_events.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <tuple>

#include "core/error.hpp"
#include "sim/engine/job.hpp"

namespace moeplan::gui {
namespace {

enum Device : std::int32_t { by_thread, kernel, expert_exchange, data_exchange, memory_copy };

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
bool holds(std::string_view text, std::string_view part) {
  return std::search(text.begin(), text.end(), part.begin(), part.end(), [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; }) != text.end();
}
constexpr std::string_view kKernelPrefix = "ncclDevKernel_", kMeasured = ", measured";

/// What runs on a device's stream, by Kineto's category and the kernel's name.
Device deviceOf(const ChromeEvent& e) {
  if (holds(e.category, "memcpy") || holds(e.category, "memset")) return memory_copy;
  if (e.category != "kernel") return by_thread;
  if (e.call.collective.empty() && !holds(e.name, "nccl")) return kernel;
  const std::string_view what = e.call.collective.empty() ? std::string_view(e.name) : std::string_view(e.call.collective);
  return holds(what, "alltoall") || holds(what, "all_to_all") || holds(what, "sendrecv") || holds(what, "dispatch") || holds(what, "combine") ? expert_exchange : data_exchange;
}

Activity activityOf(const ChromeEvent& e, Device device) {
  for (const auto& [value, name] : EnumNames<Activity>::names)
    if (e.kind == name) return value;
  switch (device) {
    case expert_exchange: return Activity::expert_communication;
    case data_exchange: return Activity::weight_communication;
    case memory_copy: return Activity::copy;
    default: break;
  }
  if (holds(e.name, "synchronize") || holds(e.name, "wait")) return Activity::host_wait;
  if (holds(e.name, "optimizer") || holds(e.name, "adam")) return Activity::optimizer;
  return holds(e.name, "backward") || holds(e.name, "bwd") ? Activity::backward : Activity::forward;
}

/// Number right after `word` in a text: "rank 12 (stage 3)".
std::optional<std::int64_t> numberAfter(const std::string& text, const std::string& word) {
  const auto at = text.find(word);
  std::int64_t v = 0;
  if (at == std::string::npos || std::from_chars(text.data() + at + word.size(), text.data() + text.size(), v).ec != std::errc()) return std::nullopt;
  return v;
}

/// "expert communication 2", a lane's second thread, is the lane.
std::string withoutNumber(const std::string& text) {
  const auto at = text.find_last_of(' ');
  return at != std::string::npos && at + 1 < text.size() && std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at) + 1, text.end(), [](unsigned char c) { return std::isdigit(c); }) ? text.substr(0, at) : text;
}

}  // namespace

std::int32_t ChromeEvents::process(const std::string& text) {
  const auto [it, fresh] = process_of_.try_emplace(text, static_cast<std::int32_t>(processes_.size()));
  if (fresh) processes_.push_back({.text = text, .name = {}, .labels = {}});
  return it->second;
}

std::int32_t ChromeEvents::track(const ChromeEvent& e) {
  const auto [it, fresh] = track_of_.try_emplace(e.process + '\n' + e.thread, static_cast<std::int32_t>(tracks_.size()));
  if (fresh) tracks_.push_back({.process = process(e.process), .text = e.thread, .name = {}});
  return it->second;
}

std::int32_t ChromeEvents::name(const std::string& text) {
  const auto [it, fresh] = name_of_.try_emplace(text, static_cast<std::int32_t>(out_.names.size()));
  if (fresh) out_.names.push_back(text);
  return it->second;
}

std::optional<std::string> ChromeEvents::add(const ChromeEvent& e) {
  ++seen_;
  if (e.phase == 'M') {
    if (e.name == "process_name") processes_[index(process(e.process))].name = e.said;
    if (e.name == "process_labels") processes_[index(process(e.process))].labels = e.said;
    if (e.name == "thread_name") tracks_[index(track(e))].name = e.said;
    return std::nullopt;
  }
  if (e.phase != 'X' && e.phase != 'B' && e.phase != 'E' && e.phase != 's' && e.phase != 'f') return std::nullopt;
  if (!e.timed) return ".ts: is missing";
  if (!base_) base_ = e.at;
  // Picoseconds in 64 bits are 106 days.
  if (e.at - *base_ > 8'000'000'000'000 || e.at - *base_ < -8'000'000'000'000) return fmt::format(".ts: {} us is more than 92 days from the first event", e.at);
  const Picoseconds at = (e.at - *base_) * 1'000'000 + e.atPico;
  if (e.phase == 's' || e.phase == 'f') {
    Pair& pair = arrows_[e.id];
    // An id that is used again begins a new arrow elsewhere: the first one stands.
    auto& end = e.phase == 's' ? pair.from : pair.to;
    if (!end) end = Arrow{track(e), name(e.name), at, e.encloses || e.phase == 's'};
    return std::nullopt;
  }
  if (e.phase == 'X' && e.duration < 0) return ".dur: is missing";
  // Step marks are no work; the annotations of a device's streams repeat what the host's say.
  if (e.name.starts_with("ProfilerStep")) {
    if (e.phase == 'X') step_ = e.duration;
    return std::nullopt;
  }
  if (e.category == "gpu_user_annotation" || e.category == "Trace" || e.category == "overhead") return std::nullopt;
  const std::int32_t where = track(e);
  if (e.phase == 'X') {
    put(e, where, at, e.duration);
  } else if (e.phase == 'B') {
    if (tracks_[index(where)].open.size() < 4096) tracks_[index(where)].open.emplace_back(at, e);
  } else if (auto& open = tracks_[index(where)].open; !open.empty()) {
    const auto [start, begun] = open.back();
    open.pop_back();
    put(begun, where, start, std::max<Picoseconds>(0, at - start));
  }
  return std::nullopt;
}

void ChromeEvents::put(const ChromeEvent& e, std::int32_t where, Picoseconds start, Picoseconds duration) {
  Track& track = tracks_[index(where)];
  const Device device = deviceOf(e);
  const Activity kind = activityOf(e, device);
  if (!e.block.empty() && track.last >= 0 && track.correlation == e.correlation) {
    TimelineEvent& whole = out_.events[index(track.last)];
    track.parts.push_back({start - whole.start, duration, name(e.name), kind});
    whole.duration = std::max(whole.duration, start + duration - whole.start);
    return;
  }
  closeBlock(track);
  const bool ours = source.starts_with("moeplan");
  std::string shown = e.block.empty() ? e.name : e.block;
  if (ours && e.block.empty() && shown.starts_with(kKernelPrefix)) shown.erase(0, kKernelPrefix.size());
  TimelineEvent out{.start = start, .duration = duration, .rank = where, .lane = device, .name = name(shown), .layer = e.layer, .micro_batch = e.microBatch, .kind = kind};
  if (!e.call.collective.empty()) {
    const auto [it, fresh] = call_of_.try_emplace(fmt::format("{}\n{}\n{} {} {}", e.call.collective, e.call.group, e.call.group_size, e.call.in_bytes, e.call.out_bytes), static_cast<std::int32_t>(out_.calls.size()));
    if (fresh) out_.calls.push_back(e.call);
    out.call = it->second;
  }
  if (!e.block.empty()) {
    track.last = static_cast<std::int32_t>(out_.events.size());
    track.correlation = e.correlation;
    track.parts.push_back({0, duration, name(e.name), kind});
  }
  out_.events.push_back(out);
}

void ChromeEvents::closeBlock(Track& track) {
  if (track.last < 0) return;
  // The same block again, as long as before, needs no second table.
  std::string key;
  for (const TimelinePart& p : track.parts)
    for (const std::int64_t v : {p.start, p.duration, static_cast<std::int64_t>(p.name), static_cast<std::int64_t>(p.kind)}) key.append(reinterpret_cast<const char*>(&v), sizeof v);
  const auto [it, fresh] = detail_of_.try_emplace(std::move(key), static_cast<std::int32_t>(out_.details.size()));
  TimelineEvent& whole = out_.events[index(track.last)];
  if (fresh) out_.details.push_back({whole.duration, track.parts});
  whole.detail = it->second;
  track.parts.clear();
  track.last = -1;
}

std::vector<std::int64_t> ChromeEvents::ranksOfProcesses() const {
  std::vector<std::int64_t> out;
  const bool named = std::any_of(processes_.begin(), processes_.end(), [](const Process& p) { return numberAfter(p.name, "rank ").has_value(); });
  std::int64_t next = 0;
  for (const Process& p : processes_) {
    const auto said = numberAfter(p.name, "rank ");
    std::int64_t number = 0;
    const bool numeric = std::from_chars(p.text.data(), p.text.data() + p.text.size(), number).ec == std::errc();
    if (source.starts_with("moeplan") && numeric) out.push_back(number);
    else if (said) out.push_back(*said);
    else if (rank) out.push_back(*rank);
    else out.push_back(named ? next : next++);
  }
  return out;
}

std::string ChromeEvents::laneOf(const TimelineEvent& e, bool ours) const {
  const Track& track = tracks_[index(e.rank)];
  if (ours) return withoutNumber(track.name.empty() ? "thread " + track.text : track.name);
  switch (e.lane) {
    case kernel: return std::string(name_of(moeplan::Track::compute));
    case expert_exchange: return std::string(name_of(moeplan::Track::expert_communication));
    case data_exchange: return std::string(name_of(moeplan::Track::data_communication));
    case memory_copy: return std::string(name_of(moeplan::Track::copy));
    default: return "host: " + (track.name.empty() ? "thread " + track.text : track.name);
  }
}

StepTimeline ChromeEvents::timeline(const std::string& path) && {
  for (Track& t : tracks_) closeBlock(t);
  if (out_.events.empty()) throw InputError(path, "traceEvents: no event with a length (ph X, or B and E)", "record a trace of at least one step");
  const bool ours = source.starts_with("moeplan"), both = source == "moeplan predicted and measured";
  const std::vector<std::int64_t> ranks = ranksOfProcesses();

  StepTimeline out;
  out.source = source == "moeplan simulated" ? "simulated" : "measured";
  out.world = world;
  for (const auto& [lane, text] : EnumNames<moeplan::Track>::names) out.lanes.emplace_back(text);
  // Per track and device its rank and lane; -1: left out.
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> lane_of;
  std::map<std::int64_t, std::int32_t> place;
  const auto rankOf = [&](std::int32_t track) { return ranks[index(tracks_[index(track)].process)] - (both ? world : 0); };
  for (const TimelineEvent& e : out_.events) {
    const auto [it, fresh] = lane_of.try_emplace({e.rank, e.lane}, -1);
    if (!fresh) continue;
    std::string lane = laneOf(e, ours);
    if (both) {
      if (!lane.ends_with(kMeasured)) continue;
      lane.erase(lane.size() - kMeasured.size());
    }
    const auto known = std::find(out.lanes.begin(), out.lanes.end(), lane);
    it->second = static_cast<std::int32_t>(known - out.lanes.begin());
    if (known == out.lanes.end()) out.lanes.push_back(lane);
    place.try_emplace(rankOf(e.rank), 0);
  }
  for (auto& [number, at] : place) {
    at = static_cast<std::int32_t>(out.ranks.size());
    TimelineRank r{.rank = number};
    for (std::size_t p = 0; p < processes_.size(); ++p) {
      if (ranks[p] - (both ? world : 0) != number) continue;
      r.stage = static_cast<std::int32_t>(std::clamp<std::int64_t>(numberAfter(processes_[p].name, "stage ").value_or(0), 0, 1 << 20));
      if (processes_[p].labels.ends_with(" equal ranks")) r.stands_for = std::max<std::int64_t>(1, numberAfter(processes_[p].labels, "").value_or(1));
    }
    out.ranks.push_back(r);
  }
  out.world = std::max(out.world, out.ranks.empty() ? 1 : out.ranks.back().rank + 1);
  const auto laneIn = [&](const TimelineEvent& e) { return lane_of.at({e.rank, e.lane}); };

  Picoseconds first = out_.events.front().start;
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < out_.events.size(); ++i) {
    if (laneIn(out_.events[i]) < 0) continue;
    order.push_back(static_cast<std::int32_t>(i));
    first = std::min(first, out_.events[i].start);
  }
  // Ours begin with the step.
  if (ours) first = base_ ? -*base_ * 1'000'000 : 0;
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const TimelineEvent &x = out_.events[index(a)], &y = out_.events[index(b)];
    return x.start != y.start ? x.start < y.start : std::pair(rankOf(x.rank), laneIn(x)) < std::pair(rankOf(y.rank), laneIn(y));
  });
  flows(out, order);
  out.events.reserve(order.size());
  for (const std::int32_t i : order) {
    TimelineEvent e = out_.events[index(i)];
    const std::int32_t lane = laneIn(e);
    e.rank = place.at(rankOf(e.rank));
    e.lane = lane;
    e.start -= first;
    out.step = std::max(out.step, e.end());
    out.events.push_back(e);
  }
  if (ours) out.step = std::max(out.step, step_);
  out.names = std::move(out_.names);
  out.calls = std::move(out_.calls);
  out.details = std::move(out_.details);
  return out;
}

/// An arrow leaves the event around its start and lands in the one around its end, or in the next one of that thread.
void ChromeEvents::flows(StepTimeline& out, const std::vector<std::int32_t>& order) const {
  std::vector<std::vector<std::int32_t>> of_track(tracks_.size());   // places in `order`
  for (std::size_t i = 0; i < order.size(); ++i) of_track[index(out_.events[index(order[i])].rank)].push_back(static_cast<std::int32_t>(i));
  const auto at = [&](const Arrow& a) -> std::int32_t {
    const auto& list = of_track[index(a.track)];
    const auto after = std::upper_bound(list.begin(), list.end(), a.at, [&](Picoseconds t, std::int32_t i) { return t < out_.events[index(order[index(i)])].start; });
    // Of events that hold the moment the innermost starts last; a few before it may have ended.
    for (auto it = after; it != list.begin() && after - it < 16;) {
      --it;
      if (out_.events[index(order[index(*it)])].end() >= a.at) return *it;
    }
    return !a.encloses && after != list.end() ? *after : -1;
  };
  for (const auto& [id, pair] : arrows_) {
    if (!pair.from || !pair.to) continue;
    const std::int32_t from = at(*pair.from), to = at(*pair.to);
    if (from >= 0 && to >= 0) out.flows.push_back({from, to, pair.from->name});
  }
  std::sort(out.flows.begin(), out.flows.end(), [](const TimelineFlow& a, const TimelineFlow& b) { return std::tie(a.from, a.to, a.name) < std::tie(b.from, b.to, b.name); });
}

}  // namespace moeplan::gui
