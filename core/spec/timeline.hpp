#pragma once
/// A training step through time: what each rank did on each lane, predicted or measured. Times are integer picoseconds since
/// the step's start. Names, calls and repeated inner parts are tables that events point into, so a step of thousands of
/// layers x micro-batches stays small.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/fields.hpp"
#include "core/quantity.hpp"

namespace moeplan {

using Picoseconds = std::int64_t;

/// Nearest picosecond. 2^63 ps are 106 days.
[[nodiscard]] constexpr Picoseconds to_picoseconds(Seconds s) { return static_cast<Picoseconds>(s.value * 1e12 + 0.5); }
[[nodiscard]] constexpr Seconds to_seconds(Picoseconds p) { return {static_cast<double>(p) * 1e-12}; }

/// What a stretch of time is spent on; also the causes of idle time.
enum class Activity : std::uint8_t { forward, backward, recompute, optimizer, expert_communication, tensor_communication, weight_communication, pipeline_exchange, host_wait, copy };
template <>
struct EnumNames<Activity> {
  static constexpr std::array names{std::pair{Activity::forward, std::string_view("forward")},
                                    std::pair{Activity::backward, std::string_view("backward")},
                                    std::pair{Activity::recompute, std::string_view("recompute")},
                                    std::pair{Activity::optimizer, std::string_view("optimizer")},
                                    std::pair{Activity::expert_communication, std::string_view("expert_communication")},
                                    std::pair{Activity::tensor_communication, std::string_view("tensor_communication")},
                                    std::pair{Activity::weight_communication, std::string_view("weight_communication")},
                                    std::pair{Activity::pipeline_exchange, std::string_view("pipeline_exchange")},
                                    std::pair{Activity::host_wait, std::string_view("host_wait")},
                                    std::pair{Activity::copy, std::string_view("copy")}};
};
inline constexpr std::size_t kActivities = EnumNames<Activity>::names.size();
[[nodiscard]] constexpr bool computes(Activity a) { return a <= Activity::optimizer; }

/// One communication call as traces show it. Sizes in bytes, of one rank.
struct TimelineCall {
  std::string collective;             ///< "all_gather", "dispatch", ...
  std::string group;                  ///< "data_shard", "expert", ...
  std::int64_t group_size = 1, group_stride = 1;   ///< members are this many ranks apart
  std::int64_t in_bytes = 0, out_bytes = 0;
  bool operator==(const TimelineCall&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("collective", &TimelineCall::collective).required(), field("group", &TimelineCall::group).required(),
                           field("group_size", &TimelineCall::group_size).at_least(1), field("group_stride", &TimelineCall::group_stride, "ranks between members").at_least(1), field("in_bytes", &TimelineCall::in_bytes, "of one rank").at_least(0),
                           field("out_bytes", &TimelineCall::out_bytes, "of one rank").at_least(0));
  }
};

/// A part of an event: an operator call inside a pass of a block. `start` counts from the event's start at its planned duration.
struct TimelinePart {
  Picoseconds start = 0, duration = 0;
  std::int32_t name = 0;
  Activity kind = Activity::forward;
  bool operator==(const TimelinePart&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("start", &TimelinePart::start, "ps from the event's start").at_least(0), field("duration", &TimelinePart::duration, "ps").at_least(0),
                           field("name", &TimelinePart::name, "index into names").at_least(0), field("kind", &TimelinePart::kind));
  }
};

/// Parts that run back to back and fill `duration`; an event that took longer or shorter stretches them.
struct TimelineDetail {
  Picoseconds duration = 0;
  std::vector<TimelinePart> parts;
  bool operator==(const TimelineDetail&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("duration", &TimelineDetail::duration, "ps").at_least(0), field("parts", &TimelineDetail::parts));
  }
};

struct TimelineEvent {
  Picoseconds start = 0, duration = 0;
  std::int32_t rank = 0;              ///< index into ranks
  std::int32_t lane = 0;              ///< index into lanes
  std::int32_t name = 0;              ///< index into names
  std::int32_t detail = -1;           ///< index into details; -1: none
  std::int32_t call = -1;             ///< index into calls; -1: not a communication call
  std::int32_t layer = -1;            ///< decoder layer; -1: none
  std::int32_t micro_batch = -1;
  Activity kind = Activity::forward;
  bool operator==(const TimelineEvent&) const = default;
  [[nodiscard]] Picoseconds end() const { return start + duration; }
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("start", &TimelineEvent::start, "ps").at_least(0), field("duration", &TimelineEvent::duration, "ps").at_least(0),
                           field("rank", &TimelineEvent::rank, "index into ranks").at_least(0), field("lane", &TimelineEvent::lane, "index into lanes").at_least(0),
                           field("name", &TimelineEvent::name, "index into names").at_least(0), field("detail", &TimelineEvent::detail, "index into details, -1 for none"),
                           field("call", &TimelineEvent::call, "index into calls, -1 for none"), field("layer", &TimelineEvent::layer, "-1 for none"),
                           field("micro_batch", &TimelineEvent::micro_batch, "-1 for none"), field("kind", &TimelineEvent::kind));
  }
};

/// Event `to` could start because of `from`: dispatch -> experts -> combine, send -> receive.
struct TimelineFlow {
  std::int32_t from = 0, to = 0;      ///< indices into events
  std::int32_t name = 0;
  bool operator==(const TimelineFlow&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("from", &TimelineFlow::from).at_least(0), field("to", &TimelineFlow::to).at_least(0), field("name", &TimelineFlow::name).at_least(0));
  }
};

struct TimelineRank {
  std::int64_t rank = 0;
  std::int32_t stage = 0;
  std::int64_t stands_for = 1;        ///< equal ranks that this one shows
  bool operator==(const TimelineRank&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("rank", &TimelineRank::rank).at_least(0), field("stage", &TimelineRank::stage).at_least(0),
                           field("stands_for", &TimelineRank::stands_for, "equal ranks").at_least(1));
  }
};

struct StepTimeline {
  std::string format = "moeplan.timeline.v1";
  std::string source = "simulated";   ///< or "measured"
  std::int64_t world = 1;
  Picoseconds step = 0;               ///< end of the last rank's work
  std::vector<TimelineRank> ranks;
  std::vector<std::string> lanes, names;
  std::vector<TimelineCall> calls;
  std::vector<TimelineDetail> details;
  std::vector<TimelineEvent> events;  ///< by start, then rank, then lane
  std::vector<TimelineFlow> flows;
  bool operator==(const StepTimeline&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("format", &StepTimeline::format).required(), field("source", &StepTimeline::source, "simulated or measured"),
                           field("world", &StepTimeline::world).at_least(1), field("step", &StepTimeline::step, "ps").required().at_least(0),
                           field("ranks", &StepTimeline::ranks).required(), field("lanes", &StepTimeline::lanes).required(), field("names", &StepTimeline::names).required(),
                           field("calls", &StepTimeline::calls), field("details", &StepTimeline::details), field("events", &StepTimeline::events).required(),
                           field("flows", &StepTimeline::flows));
  }
};

}  // namespace moeplan
