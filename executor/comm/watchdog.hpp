#pragma once
/// Who held up the others, and a thread that asks. Limits come from predicted times; a rank that overruns its limit is a symptom,
/// so the culprit is looked for along who waits for whom: from the overdue call to a member that has not come to it, and so on,
/// until a rank that is not waiting for anybody. Where that one tells of its work (`Progress::set_stall`) it is left alone as long as it does. Of a call to which
/// all have come, the one is to blame whose wait does not turn (`Progress::turn`) while the others' do.

#include <condition_variable>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "executor/comm/progress.hpp"

namespace moeplan {

/// What is known of one rank.
struct RankState {
  int rank = 0;
  std::string host;
  bool gone = false;       ///< its process has ended without saying goodbye
  bool silent = false;     ///< no sign of life for too long: stopped, or its host cannot be reached
  Snapshot at{};           ///< the latest that it said
};

/// The rank that is to blame, where it was, and why we think so.
struct Verdict {
  int rank = 0;
  std::string host;
  std::string position;    ///< Snapshot::text()
  std::string reason;
  /// "rank 3 on gpu07: forward dispatch, all_to_all #12 on world/ep.0: its process ended"
  [[nodiscard]] std::string text() const;
};

/// The rank that waits longest in a call which `rank` is not known to have come to; null if none does. Where `rank` has died or stopped,
/// that call says better than its last word what it was about: all ranks make the same calls.
[[nodiscard]] const RankState* who_waits_for(int rank, const std::vector<RankState>& states);

/// Empty if nobody is gone, silent, overdue, stalled or standing still while another waits for it (or all stalled for long), or if who is waited for goes on with its work. `states` in any order; a rank that is absent from it is fine.
[[nodiscard]] std::optional<Verdict> find_culprit(const std::vector<RankState>& states);

struct LimitRule {
  double factor = 5;            ///< times the predicted time
  Duration at_least{20000};     ///< below it, start-up noise and one slow disk would end runs
};
/// How long a call may take that is predicted to take `seconds`.
[[nodiscard]] Duration operation_limit(double seconds, const LimitRule& rule = {});
/// Within `kOut` of a call that waits for a rank in vain all have left: that it is overdue is known `kNoticed` after its limit (three signs of life, a
/// second apart: one on its way, two to look on), and what does not leave within `kGrace` of the verdict is ended.
inline constexpr Duration kOut{60000}, kNoticed{3000}, kGrace{15000};
/// How long a rank that tells of its work may tell of none: what the above leaves, less two seconds in which processes end.
inline constexpr Duration kStalled = kOut - kNoticed - kGrace - Duration{2000};

/// How long a call within a step may wait for the others, who do at most a step's work before they come: 5 times what a step is predicted to take (0:
/// nobody says) or the longest so far took, whichever is more; at least 20 s, and no more than `kOut` leaves unless 1.5 times a step is. The first step
/// (`longest` 0) makes ready what the later ones use: at least what `kOut` leaves, and `most` where nobody says. Never above `most`.
[[nodiscard]] Duration step_limit(double predicted, double longest, Duration most);

/// Looks at the ranks of this process (one, or several as threads) every `tick` and calls `on_overdue` once, from its own thread,
/// when a call has overrun its limit. The callback aborts communicators; it must not destroy the watchdog.
class Watchdog {
 public:
  struct Watched {
    int rank = 0;
    std::string host;
    const Progress* progress = nullptr;   ///< outlives the watchdog
  };
  Watchdog(std::vector<Watched> ranks, std::function<void(const Verdict&)> on_overdue, Duration tick = Duration{250});
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();
  std::vector<Watched> ranks_;
  std::function<void(const Verdict&)> on_overdue_;
  Duration tick_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace moeplan
