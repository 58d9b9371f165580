#include "executor/train/measured.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace moeplan {
namespace {

constexpr int kStamps = 64;

Picoseconds picoseconds(double seconds) { return to_picoseconds({std::max(0.0, seconds)}); }

}  // namespace

double stamp_seconds(Backend& backend) {
  const auto stamps = [&] {
    for (int i = 0; i < kStamps; ++i) backend.stamp();
  };
  stamps();
  std::vector<double> at = backend.stamps();
  if (const Backend::Recording row = backend.record(stamps)) {   // as in a recorded step
    row();
    at = backend.stamps();
  }
  std::vector<double> gaps;
  for (std::size_t i = 1; i < at.size(); ++i) gaps.push_back(at[i] - at[i - 1]);
  std::sort(gaps.begin(), gaps.end());
  return gaps.empty() ? 0 : gaps[gaps.size() / 2];
}

void StepRecorder::record(const Instance& instance, const BlockNode& node, double begin, double end) {
  if (const CommCall* comm = std::get_if<CommCall>(&node.call); comm && is_host_copy(comm->collective)) {
    copies_.push_back({instance, {std::string(name_of(comm->collective)), Activity::copy, begin, end}});
    return;
  }
  const bool backward = instance.phase != Phase::forward;   // weight gradients that were put off, too
  if (stretches_.empty() || stretches_.back().slot != instance.slot || stretches_.back().micro_batch != instance.micro_batch || stretches_.back().backward != backward)
    stretches_.push_back({instance.slot, instance.micro_batch, backward, begin, end, {}});
  const OpCall* call = std::get_if<OpCall>(&node.call);
  const bool gradient = call && call->pass == Pass::backward;
  const bool waits = std::holds_alternative<HostWait>(node.call) && node.lane == Lane::copy;
  stretches_.back().parts.push_back({call ? fmt::format("{} {}", kind(call->op), gradient ? "backward" : "forward") : waits ? "wait for copies" : "communication",
                                     node.recompute ? Activity::recompute : backward ? Activity::backward : Activity::forward, begin, end});
  stretches_.back().end = end;
}

StepTimeline StepRecorder::timeline() const {
  StepTimeline t;
  t.source = "measured";
  t.ranks = {{.rank = 0, .stage = 0, .stands_for = 1}};
  t.lanes = {"compute"};
  std::map<std::string, std::int32_t> known;
  const auto name = [&](const std::string& text) {
    const auto [it, fresh] = known.try_emplace(text, static_cast<std::int32_t>(t.names.size()));
    if (fresh) t.names.push_back(text);
    return it->second;
  };
  for (const Stretch& s : stretches_) {
    const std::int32_t layer = program_.slots[static_cast<std::size_t>(s.slot)].layer;
    const std::string& block = program_.blocks[static_cast<std::size_t>(program_.slots[static_cast<std::size_t>(s.slot)].block)].name;
    TimelineDetail detail{.duration = picoseconds(s.end - s.begin), .parts = {}};
    // Parts fill their stretch: the gap before a call is the host's work for it.
    double before = s.begin;
    detail.duration = 0;
    for (const auto& p : s.parts) {
      detail.parts.push_back({.start = detail.duration, .duration = picoseconds(p.end - before - stamp_), .name = name(p.name), .kind = p.kind});
      detail.duration += detail.parts.back().duration;
      before = p.end;
    }
    t.events.push_back({.start = picoseconds(s.begin), .duration = detail.duration, .rank = 0, .lane = 0, .name = name(block), .detail = static_cast<std::int32_t>(t.details.size()), .call = -1,
                        .layer = layer, .micro_batch = s.micro_batch, .kind = s.backward ? Activity::backward : Activity::forward});
    t.details.push_back(std::move(detail));
    t.step = std::max(t.step, t.events.back().end());
  }
  if (!copies_.empty()) t.lanes.emplace_back("copy");
  for (const auto& [instance, copy] : copies_)
    t.events.push_back({.start = picoseconds(copy.begin), .duration = picoseconds(copy.end - copy.begin), .rank = 0, .lane = 1, .name = name(copy.name), .detail = -1, .call = -1,
                        .layer = program_.slots[static_cast<std::size_t>(instance.slot)].layer, .micro_batch = instance.micro_batch, .kind = Activity::copy});
  return t;
}

std::vector<HeldMemory> StepRecorder::memory(const ArenaPlan& arena, Bytes peak) const {
  std::vector<HeldMemory> out;
  for (const Stretch& s : stretches_) {
    const SlotPlacement& slot = arena.lane(s.micro_batch).slots[static_cast<std::size_t>(s.slot)];
    out.push_back({picoseconds(s.begin), peak - arena.peak + (s.backward ? slot.backward : slot.forward).alive});
  }
  return out;
}

Json held_json(const std::vector<HeldMemory>& held) {
  Json out = Json::array();
  for (const HeldMemory& h : held) out.push_back({{"start_ps", h.start}, {"bytes", h.bytes.value}});
  return out;
}

Json memory_json(const MemoryBreakdown& memory) {
  Json out = Json::object();
  out["peak_bytes"] = memory.peak().value;
  if (!memory.peak_at.empty()) out["peak_at"] = memory.peak_at;
  if (memory.host.value > 0) out["host_bytes"] = memory.host.value;
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names)
    if (memory[category].value > 0) out[std::string(name)] = memory[category].value;
  return out;
}

}  // namespace moeplan
