#pragma once
/// After the start: the authenticated connections stay as a lifeline, over which each rank tells rank 0 every second where it is.
/// When a process ends, falls silent, or a call overruns its limit, rank 0 finds the culprit (`find_culprit`) and tells all; when
/// rank 0 itself is lost, every rank sees that for itself. So each rank learns who failed, where, and leaves, whatever its own
/// threads hang in. Nothing but positions and barriers travels here.
///
/// A killed process is seen at once (its connection ends), a stopped one after `silence`, a stuck one after the limit of the call
/// that waits for it plus two beats. Where it was is what another waits for it in: up to two beats are given for that to show.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/json.hpp"
#include "executor/comm/communicator.hpp"
#include "executor/comm/progress.hpp"
#include "executor/comm/watchdog.hpp"
#include "executor/rendezvous/join.hpp"

namespace moeplan {

struct LifelineOptions {
  Duration beat{1000};        ///< how often a rank says where it is; sooner, by up to a tenth of it, when its phase changes
  Duration silence{10000};    ///< after which it is taken for stopped
};

class Lifeline {
 public:
  /// `progress` is this rank's and outlives the lifeline. `on_lost` is called at most once, from the lifeline's thread; it aborts the
  /// communicators, and ends the process if they do not let go in time.
  Lifeline(Joined joined, Progress& progress, std::function<void(const Verdict&)> on_lost, const LifelineOptions& options = {});
  /// Says goodbye: a rank that has left properly is not missed.
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  /// All ranks meet here, without the device: before a manifest is written, say. `name` must agree. Throws CommError `peer_lost` with
  /// the verdict if a rank is lost first, or does not come within `limit` and has no work to tell of.
  void barrier(const std::string& name, Duration limit);

  /// This rank cannot go on (an exception, memory, a NaN that policy does not allow): all others are told, with it as the culprit, or with
  /// `culprit` where it found another rank's fault.
  void fail(const std::string& reason, std::optional<int> culprit = {});

  [[nodiscard]] std::optional<Verdict> verdict() const;

 private:
  struct Peer {
    int rank = 0;
    std::string host;
    Channel channel;
    Clock::time_point heard;
    Snapshot at;
    bool goodbye = false, gone = false;
  };
  void work();
  void post();
  void hear(Peer& peer, const Json& message);
  void beat();
  void judge();
  void decide(const Verdict& verdict);
  void arrive(int rank, const std::string& name);
  void tell(const Json& message);
  void wake();
  [[nodiscard]] CommError lost(const std::string& name, CommFault fault, const std::string& reason) const;

  const int rank_;
  const std::vector<std::string> hosts_;
  Progress& progress_;
  std::function<void(const Verdict&)> on_lost_;
  const LifelineOptions options_;
  std::vector<Peer> peers_;             ///< thread only
  std::map<int, std::string> arrived_;  ///< rank 0, thread only: who is at the barrier, and what it calls it
  std::optional<Clock::time_point> overdue_since_, lost_since_;
  int wake_read_ = -1, wake_write_ = -1;
  std::atomic<bool> phase_changed_{false};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Json> outbox_;
  std::vector<std::string> own_arrivals_;
  std::optional<Verdict> own_failure_;
  std::uint64_t barriers_ = 0, released_ = 0;
  std::optional<Verdict> verdict_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace moeplan
