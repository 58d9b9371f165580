#pragma once
/// Discrete events in integer picoseconds. Events of one instant come out in the order they went in, so a run is the same on
/// every machine. A radix heap (Ahuja, Mehlhorn, Orlin, Tarjan 1990) over digits of 6 bits: time never goes back, so an event lies
/// in the bucket of the highest digit in which its time differs from the clock, and of that digit's value; it moves to lower
/// digits as the clock comes nearer. An event alone in its bucket comes out at once, so with thousands of events pending each
/// moves once or twice (over single bits: seven times). Moves keep the order, equal times share a bucket to the end: no comparison
/// of orders, few branches, and ties cost next to nothing.

#include <array>
#include <bit>
#include <cassert>
#include <cstdint>
#include <vector>

#include "core/spec/timeline.hpp"

namespace moeplan {

class EventQueue {
 public:
  struct Event {
    Picoseconds at = 0;
    std::uint32_t what = 0;      ///< the owner's index
    std::uint32_t version = 0;   ///< lets the owner ignore events that it has overtaken
  };

  [[nodiscard]] Picoseconds now() const { return now_; }
  [[nodiscard]] bool empty() const { return levels_ == 0; }
  /// Whether more events of this very instant wait.
  [[nodiscard]] bool due() const { return filled_[0] >> (static_cast<std::uint64_t>(now_) % kValues) & 1; }
  /// Owners of the two events that most likely come next; `otherwise` where there are none.
  [[nodiscard]] std::array<std::uint32_t, 2> upcoming(std::uint32_t otherwise) const {
    if (empty()) return {otherwise, otherwise};
    const auto level = static_cast<std::size_t>(std::countr_zero(levels_));
    const std::uint64_t values = filled_[level], others = values & (values - 1);
    const std::vector<Event>& first = buckets_[level * kValues + static_cast<std::size_t>(std::countr_zero(values))];
    const std::uint32_t next = first[level == 0 ? taken_ : 0].what;
    return {next, others == 0 ? next : buckets_[level * kValues + static_cast<std::size_t>(std::countr_zero(others))].front().what};
  }
  [[nodiscard]] std::uint64_t pushed() const { return pushed_; }

  /// `at` is not before now().
  void push(Picoseconds at, std::uint32_t what, std::uint32_t version = 0) {
    assert(at >= now_);
    ++pushed_;
    put({at, what, version});
  }

  /// Earliest event; the clock moves to it. The queue is not empty.
  Event pop() {
    assert(!empty());
    const auto level = static_cast<std::size_t>(std::countr_zero(levels_));
    const auto value = static_cast<std::size_t>(std::countr_zero(filled_[level]));
    std::vector<Event>& bucket = buckets_[level * kValues + value];
    if (level == 0) {   // all of one instant
      const Event e = bucket[taken_];
      now_ = e.at;
      if (++taken_ == bucket.size()) {
        bucket.clear();
        taken_ = 0;
        clear(level, value);
      }
      return e;
    }
    std::size_t first = 0;
    for (std::size_t i = 1; i < bucket.size(); ++i)
      if (bucket[i].at < bucket[first].at) first = i;
    const Event e = bucket[first];
    now_ = e.at;
    clear(level, value);
    // The others belong to lower levels now: none comes back into the bucket that is read here.
    for (std::size_t i = 0; i < bucket.size(); ++i)
      if (i != first) put(bucket[i]);
    bucket.clear();
    return e;
  }

 private:
  static constexpr std::size_t kDigit = 6, kValues = std::size_t{1} << kDigit, kLevels = (64 + kDigit - 1) / kDigit;
  void clear(std::size_t level, std::size_t value) {
    filled_[level] &= ~(std::uint64_t{1} << value);
    if (filled_[level] == 0) levels_ &= ~(std::uint32_t{1} << level);
  }
  void put(const Event& e) {
    const auto differs = static_cast<std::uint64_t>(e.at ^ now_) | 1;
    const std::size_t level = static_cast<std::size_t>(std::bit_width(differs) - 1) / kDigit;
    const std::size_t value = static_cast<std::uint64_t>(e.at) >> (level * kDigit) & (kValues - 1);
    filled_[level] |= std::uint64_t{1} << value;
    levels_ |= std::uint32_t{1} << level;
    buckets_[level * kValues + value].push_back(e);
  }

  std::vector<std::vector<Event>> buckets_{kLevels * kValues};
  std::array<std::uint64_t, kLevels> filled_{};   ///< per level: which values have events
  std::uint32_t levels_ = 0;                      ///< which levels have events
  std::size_t taken_ = 0;                         ///< events of the bucket of this instant that have come out
  Picoseconds now_ = 0;
  std::uint64_t pushed_ = 0;
};

}  // namespace moeplan
