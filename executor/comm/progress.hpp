#pragma once
/// Where a rank is, for whoever must say which rank held up the others: the phase of the step, the communication call it is
/// in, and how far it came on each communicator. One `Progress` per rank; the rank writes it, the watchdog and the lifeline
/// read copies.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
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
  Duration elapsed{0};                             ///< in the call, or since the last one ended
  Duration limit{0};                               ///< 0: none

  [[nodiscard]] bool overdue() const { return in_call && limit.count() > 0 && elapsed > limit; }
  /// "forward dispatch, all_to_all #12 on world/ep.0" or "optimizer, outside communication".
  [[nodiscard]] std::string text() const;
};

class Progress {
 public:
  /// Limit for calls that name none of their own; 0 for none.
  explicit Progress(Duration limit = Duration{0}) : limit_(limit), since_(Clock::now()) {}

  void set_phase(std::string phase);
  /// `told` is called after each change of phase, from the rank's thread; empty: nobody any more.
  void on_phase(std::function<void()> told);
  /// Limit for the calls entered from now on: `operation_limit(predicted)` of what comes next.
  void set_limit(Duration limit);
  void enter(const std::string& communicator, const std::string& operation, std::uint64_t sequence, std::vector<int> members, bool collective);
  void leave();
  [[nodiscard]] Snapshot snapshot() const;

 private:
  mutable std::mutex mutex_;
  Snapshot now_;
  Duration limit_;
  Clock::time_point since_;
  std::function<void()> told_;
};

}  // namespace moeplan
