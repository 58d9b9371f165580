#pragma once
/// Discrete events in integer picoseconds. Events of one instant come out in the order they went in, so a run is the same on
/// every machine. After htsim's event list; a 4-ary heap, because the keys of four children share a cache line.

#include <cassert>
#include <cstdint>
#include <vector>

#include "core/spec/timeline.hpp"

namespace moeplan {

class EventQueue {
 public:
  struct Event {
    Picoseconds at = 0;
    std::uint64_t order = 0;     ///< how many went in before it
    std::uint32_t what = 0;      ///< the owner's index
    std::uint32_t version = 0;   ///< lets the owner ignore events that it has overtaken
  };

  [[nodiscard]] Picoseconds now() const { return now_; }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  /// Time of the earliest event. The queue is not empty.
  [[nodiscard]] Picoseconds next() const { return heap_.front().at; }
  [[nodiscard]] std::uint64_t pushed() const { return order_; }
  void reserve(std::size_t events) { heap_.reserve(events); }

  /// `at` is not before now().
  void push(Picoseconds at, std::uint32_t what, std::uint32_t version = 0) {
    assert(at >= now_);
    const Event e{at, order_++, what, version};
    std::size_t i = heap_.size();
    heap_.push_back(e);
    while (i > 0) {
      const std::size_t parent = (i - 1) / 4;
      if (!before(e, heap_[parent])) break;
      heap_[i] = heap_[parent];
      i = parent;
    }
    heap_[i] = e;
  }

  /// Earliest event; the clock moves to it. The queue is not empty.
  Event pop() {
    assert(!heap_.empty());
    const Event top = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    const std::size_t n = heap_.size();
    for (std::size_t i = 0; n > 0;) {
      std::size_t child = 4 * i + 1, least = child;
      if (child >= n) { heap_[i] = last; break; }
      for (std::size_t c = child + 1; c < child + 4 && c < n; ++c)
        if (before(heap_[c], heap_[least])) least = c;
      if (!before(heap_[least], last)) { heap_[i] = last; break; }
      heap_[i] = heap_[least];
      i = least;
    }
    now_ = top.at;
    return top;
  }

 private:
  static bool before(const Event& a, const Event& b) { return a.at != b.at ? a.at < b.at : a.order < b.order; }
  std::vector<Event> heap_;
  Picoseconds now_ = 0;
  std::uint64_t order_ = 0;
};

}  // namespace moeplan
