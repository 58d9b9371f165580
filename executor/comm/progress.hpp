#pragma once
/// Where a rank is, for whoever must say which rank held up the others: the phase of the step, the communication call it is
/// in, and how far it came on each communicator. One `Progress` per rank; the rank writes it, the watchdog and the lifeline
/// read copies. Where `set_stall` says so it also tells of work done outside calls, so that one that hangs is told from one that is slow; within calls
/// each turn of a wait is told of (`turn`), so that one that stands still there is told from those that wait for it.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace moeplan {

using Clock = std::chrono::steady_clock;
using Duration = std::chrono::milliseconds;

/// A copy of a rank's progress.
struct Snapshot {
  std::string phase = "start";                     ///< "forward dispatch", "optimizer", "save" ...
  bool in_call = false;                            ///< inside a communication call or a barrier
  std::string communicator;                        ///< of that call
  std::string operation;                           ///< "all_to_all"
  std::uint64_t sequence = 0;                      ///< its number on that communicator
  std::vector<int> members;                        ///< world ranks whose part it needs
  std::map<std::string, std::uint64_t> entered;    ///< communicator -> number of the latest collective entered there
  Duration elapsed{0};                             ///< in the call; outside, since the last call, change of phase or work done
  Duration limit{0};                               ///< of the call; 0: none
  Duration together{0};                            ///< of the call once all its ranks have come and turn; not less than `limit`
  Duration still{0};                               ///< in the call, since a wait of it last turned; 0 where nobody tells of turns
  Duration stall{0};                               ///< most of `elapsed` outside calls, of `still` within; 0: nobody tells of work done, so nobody knows
  Duration untold{1000000000};                     ///< since it stopped telling of work done, where `stall` is 0; long, where it never did

  [[nodiscard]] bool overdue() const { return in_call && limit.count() > 0 && elapsed > limit; }
  [[nodiscard]] bool stalled() const { return !in_call && stall.count() > 0 && elapsed > stall; }
  [[nodiscard]] bool stands_still() const { return in_call && stall.count() > 0 && still > stall; }
  /// For how long it has kept others waiting at most: not while it went on with work that it told of.
  [[nodiscard]] Duration answers_for() const { return stall.count() == 0 ? untold : in_call || stalled() ? elapsed : Duration{0}; }
  /// "forward dispatch, all_to_all #12 on world/ep.0" or "optimizer, outside communication".
  [[nodiscard]] std::string text() const;
};

class Progress {
 public:
  /// Limit for calls that name none of their own; 0 for none. `turns`: all calls tell of the turns of their waits.
  explicit Progress(Duration limit = Duration{0}, bool turns = false) : turns_(turns), limit_(limit), since_(Clock::now()) {}

  void set_phase(std::string phase);
  /// `told` is called after each change of phase, from the rank's thread; empty: nobody any more.
  void on_phase(std::function<void()> told);
  /// Limit for the calls entered from now on: `operation_limit(predicted)` of what comes next. `together`: for calls that all have come to and turn in,
  /// where that is more.
  void set_limit(Duration limit, Duration together = Duration{0});
  /// From now on work is told of at least so often while this rank is not in a call; 0: no more.
  void set_stall(Duration stall);
  /// Work was done outside calls. `next`: what the next piece may take, where that is more than the limit.
  void advance(Duration next = Duration{0});
  void enter(const std::string& communicator, const std::string& operation, std::uint64_t sequence, std::vector<int> members, bool collective);
  void leave();
  /// The wait of a call has turned: it does not stand still. Often and cheap.
  void turn() { turned_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed); }
  [[nodiscard]] Snapshot snapshot() const;

 private:
  mutable std::mutex mutex_;
  Snapshot now_;
  const bool turns_;
  std::atomic<Clock::rep> turned_{0};
  Duration limit_, together_{0}, stall_{0};
  Clock::time_point since_;
  std::optional<Clock::time_point> untold_since_;
  std::function<void()> told_;
};

}  // namespace moeplan
