#pragma once
/// Discrete events in integer picoseconds. Events of one instant come out in the order they went in, so a run is the same on
/// every machine. A radix heap (Ahuja, Mehlhorn, Orlin, Tarjan 1990): time never goes back, so an event lies in the bucket of the
/// highest bit in which its time differs from that of the last pop, and moves to lower buckets as the clock comes nearer. Moves
/// keep the order, equal times share a bucket to the end: no comparison of orders, few branches, and ties cost next to nothing.

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
  [[nodiscard]] bool empty() const { return filled_[0] == 0 && filled_[1] == 0; }
  /// Time of the earliest event. The queue is not empty.
  [[nodiscard]] Picoseconds next() const { return least_[first()]; }
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
    const std::size_t b = first();
    if (b > 0) {
      now_ = least_[b];
      std::swap(moving_, buckets_[b]);
      clear(b);
      for (const Event& e : moving_) put(e);
      moving_.clear();
    }
    std::vector<Event>& due = buckets_[0];
    const Event e = due[taken_];
    if (++taken_ == due.size()) {
      due.clear();
      taken_ = 0;
      clear(0);
    }
    return e;
  }

 private:
  static constexpr std::size_t kBuckets = 65;   ///< 0: due now; b: highest differing bit is b - 1
  [[nodiscard]] std::size_t first() const { return static_cast<std::size_t>(filled_[0] ? std::countr_zero(filled_[0]) : 64 + std::countr_zero(filled_[1])); }
  void clear(std::size_t b) { filled_[b / 64] &= ~(std::uint64_t{1} << b % 64); }
  void put(const Event& e) {
    const auto b = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(e.at) ^ static_cast<std::uint64_t>(now_)));
    const std::uint64_t bit = std::uint64_t{1} << b % 64;
    if (!(filled_[b / 64] & bit) || e.at < least_[b]) least_[b] = e.at;
    filled_[b / 64] |= bit;
    buckets_[b].push_back(e);
  }

  std::array<std::vector<Event>, kBuckets> buckets_;
  std::array<Picoseconds, kBuckets> least_{};    ///< earliest time in each bucket that has events
  std::array<std::uint64_t, 2> filled_{};
  std::vector<Event> moving_;
  std::size_t taken_ = 0;                        ///< events of bucket 0 that have come out
  Picoseconds now_ = 0;
  std::uint64_t pushed_ = 0;
};

}  // namespace moeplan
