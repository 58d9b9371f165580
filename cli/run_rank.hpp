#pragma once
/// One rank of `moeplan run`: training steps, saves, adapter, what was measured.

#include <algorithm>
#include <csignal>
#include <ctime>
#include <optional>

#include "cli/command.hpp"
#include "cli/run_launch.hpp"
#include "cli/slice.hpp"
#include "executor/checkpoint/checkpoint.hpp"
#include "executor/comm/progress.hpp"
#include "executor/ranks/state.hpp"
#include "planner/planner.hpp"

namespace moeplan::cli {

inline constexpr int kInfeasible = 3, kFailed = 4, kInterrupted = 5;

/// What the command line of `run` says.
struct RunOptions {
  std::string plan, backend = "cpu", weights, data = "synthetic", adapter, from_adapter, dialect = "D3", checkpoint,
                    output, prometheus, overflow;
  bool resume = false, no_packing = false, float32 = false;
  std::int64_t save_every = 0;
  std::optional<std::int64_t> stop_after;
  std::optional<int> rank_slice;  ///< this rank of the plan alone
  bool bound_given = false;       ///< --routed-bound was
  int ranks = 1, device = 0;
  bool processes = false;  ///< the ranks are processes, each with its signals; else threads of this one
  LaunchOptions launch;
  double rank_timeout = 300;
  bool timeout_given = false;     ///< --rank-timeout was: for all calls, whatever a step takes
  TrainOptions train;
};

/// TERM, USR1 and INT are held back while this lives, so that a step is finished before they are looked at; once one
/// came, the next acts at once.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&set_);
    for (const int s : {SIGTERM, SIGUSR1, SIGINT}) sigaddset(&set_, s);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  /// The signal that waits, 0 without.
  [[nodiscard]] int pending() {
    const timespec none{};
    const int s = sigtimedwait(&set_, nullptr, &none);
    if (s > 0) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    return std::max(s, 0);
  }

 private:
  sigset_t set_{}, before_{};
};

/// What the ranks of a run share; only rank 0 writes to `out` and to files.
struct Session {
  const Context& context;
  const RunOptions& options;
  const LoadedPlan& loaded;
  const MemoryBreakdown& predicted;
  HeldSignals& signals;
  const SlicePrediction* slice = nullptr;  ///< of a rank that runs alone
  std::optional<WholeState> whole;  ///< rank 0 of several, where saves or adapters are asked for
  std::string fingerprint;
  Seconds predicted_step{};                ///< 0 where none was predicted
  Seconds at_peak{};                       ///< time of the step's model flops at the devices' bf16 peak; 0 where none of them runs it
  Output out;
};

/// How long a rank may have no work to tell of while others wait for it.
[[nodiscard]] Duration stall_of(const RunOptions& options);

/// Trains alone (`world` null), or as one of the ranks of `world`; threads of one process share the session.
void run_rank(Session& session, Communicator* world, Progress* progress);

}  // namespace moeplan::cli
