#pragma once
/// Events of a Chrome trace, one at a time, gathered into a timeline. What the JSON reader (chrome_trace.cpp) fills in.

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/spec/timeline.hpp"

namespace moeplan::gui {

/// What counts of one event; text as it stands in the file, cut to a few kilobytes.
struct ChromeEvent {
  char phase = 0;
  bool timed = false, encloses = false;           ///< has a ts; an arrow that ends in the event around it (bp "e")
  std::string name, category, process, thread, id;
  std::int64_t at = 0, duration = -1;             ///< microseconds, and picoseconds; -1: none
  std::int32_t atPico = 0, layer = -1, microBatch = -1;
  std::int64_t correlation = -1;
  std::string block, kind, said;                  ///< `said`: args.name or args.labels of metadata
  TimelineCall call;                              ///< of a communication call; no collective: none
};

class ChromeEvents {
 public:
  std::string source;                             ///< top-level "source"
  std::optional<std::int64_t> rank;               ///< distributedInfo.rank
  std::int64_t world = 1;

  /// What is wrong with it, if anything: ".ts: ..." of the event.
  [[nodiscard]] std::optional<std::string> add(const ChromeEvent& event);
  [[nodiscard]] std::size_t seen() const { return seen_; }
  [[nodiscard]] std::size_t events() const { return out_.events.size(); }
  /// Throws InputError if there is no event with a length.
  [[nodiscard]] StepTimeline timeline(const std::string& path) &&;

 private:
  struct Process { std::string text, name, labels; };
  struct Track {
    std::int32_t process = 0;
    std::string text, name;
    std::vector<std::pair<std::int64_t, ChromeEvent>> open = {};   ///< B without E yet, with their starts
    std::int32_t last = -1;                                          ///< event whose further parts may follow
    std::int64_t correlation = -1;
    std::vector<TimelinePart> parts = {};
  };
  struct Arrow { std::int32_t track = 0, name = 0; Picoseconds at = 0; bool encloses = true; };
  struct Pair { std::optional<Arrow> from, to; };

  std::int32_t process(const std::string& text);
  std::int32_t track(const ChromeEvent& event);
  std::int32_t name(const std::string& text);
  void put(const ChromeEvent& event, std::int32_t track, Picoseconds start, Picoseconds duration);
  void closeBlock(Track& track);
  [[nodiscard]] std::vector<std::int64_t> ranksOfProcesses() const;
  [[nodiscard]] std::string laneOf(const TimelineEvent& event, bool ours) const;
  void flows(StepTimeline& out, const std::vector<std::int32_t>& order) const;

  StepTimeline out_;                              ///< until `timeline`: an event's rank is its track, its lane what `Device` says
  std::vector<Process> processes_;
  std::vector<Track> tracks_;
  std::unordered_map<std::string, std::int32_t> process_of_, track_of_, name_of_, call_of_, detail_of_;
  std::unordered_map<std::string, Pair> arrows_;
  std::optional<std::int64_t> base_;              ///< microseconds of the first event
  Picoseconds step_ = 0;                          ///< length of the last step mark
  std::size_t seen_ = 0;
};

}  // namespace moeplan::gui
