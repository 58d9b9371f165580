#pragma once
/// Events of a timeline, packed for drawing: rows sorted by start with a pyramid of summaries over them, so that any zoom draws in time
/// that depends on pixels, not on events, and every event is part of some mark. 10 million events take about 330 MB.

#include <QString>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "core/spec/timeline.hpp"

namespace moeplan::gui {

struct TraceEvent {
  Picoseconds start = 0;
  Picoseconds duration = 0;
  std::int32_t name = 0;
  std::int32_t origin = -1;           ///< index of the TimelineEvent it was made from; -1: none
  Activity kind = Activity::forward;
  [[nodiscard]] Picoseconds end() const { return start + duration; }
};

/// What is drawn of a stretch of a row: one event, or many as a density mark.
struct TraceMark {
  Picoseconds start = 0, end = 0;
  double density = 1;                 ///< share of the stretch that is busy
  std::int64_t events = 1;
  std::int64_t index = 0;             ///< of the first event
  Activity kind = Activity::forward;  ///< of the event, or that with the most time among many
};

struct TraceRow {
  QString label;
  QString note;                       ///< drawn after it: how many ranks this one stands for
  QString laneName;
  QString origin;                     ///< of rows that are not the prediction: " (measured)"
  QString node, expertGroup;          ///< which of them the rank is in, as a heading over its rows; empty: not known
  std::int64_t number = 0;            ///< of the rank
  std::int32_t rank = 0, lane = 0;    ///< as in the StepTimeline
  std::int32_t overlap = 0;           ///< further row of its lane, for events that overlap
  std::int32_t stage = 0;
  bool measured = false;
  std::vector<TraceEvent> events;     ///< by start; do not overlap

  /// Builds the summaries; call after `events` is complete.
  void build();
  /// Marks of [from, to] where anything shorter than `pixel` joins its neighbours. Every event that meets the span is in exactly one mark.
  void marks(Picoseconds from, Picoseconds to, Picoseconds pixel, const std::function<void(const TraceMark&)>& draw) const;
  /// Index of the event at `at`, or -1; `slack` picoseconds beside it count.
  [[nodiscard]] std::int64_t eventAt(Picoseconds at, Picoseconds slack = 0) const;

 private:
  static constexpr std::size_t kFan = 16;
  struct Node {
    Picoseconds start = 0, end = 0, busy = 0, longest = 0, kindTime = 0;
    Activity kind = Activity::forward;
  };
  void visit(std::size_t level, std::size_t node, Picoseconds from, Picoseconds to, Picoseconds pixel, const std::function<void(const TraceMark&)>& draw) const;
  std::vector<std::vector<Node>> levels_;   ///< levels_[0] sums up kFan events a node, each further one kFan nodes
};

struct TraceFlow {
  std::int32_t fromRow = 0, toRow = 0;
  std::int64_t from = 0, to = 0;      ///< event indices in their rows
  std::int32_t name = 0;
  Picoseconds leaves = 0, lands = 0, length = 0;   ///< end of the first event, start of the second, time of both: a frame asks them of each flow
};

/// A line on the timeline's own axis: memory of a rank, tokens of an expert.
struct Counter {
  QString name, unit;
  std::vector<double> seconds, values;   ///< steps: a value holds until the next moment
};

struct TraceStore {
  Picoseconds end = 0;
  std::vector<QString> names;
  std::vector<TraceRow> rows;
  std::vector<TraceFlow> flows;
  [[nodiscard]] std::int64_t events() const;
};

/// One row per rank and lane that holds events; events that overlap go to further rows of the lane, as in the Chrome trace.
[[nodiscard]] TraceStore storeOf(const StepTimeline& timeline, bool measured);

/// Predicted rows with the measured row of the same rank and lane below each; ranks in order.
[[nodiscard]] TraceStore beside(TraceStore predicted, TraceStore measured);

/// Writes over each row in which node its rank sits and in which expert group: `devicesPerNode` ranks a node; of a stage's `stageRanks`,
/// `groupRanks` after each other exchange tokens (expert x expert-tensor degree).
void nameGroups(TraceStore& store, std::int64_t devicesPerNode, std::int64_t stageRanks, std::int64_t groupRanks);

/// Sums over a span: per name, count, total and mean of what lies inside, and how much of it ran while the compute lane of its rank did.
struct SpanSum {
  QString name;
  std::int64_t count = 0;
  Picoseconds total = 0, overlapped = 0;
};
[[nodiscard]] std::vector<SpanSum> sums(const TraceStore& store, std::span<const int> rows, Picoseconds from, Picoseconds to);

}  // namespace moeplan::gui
