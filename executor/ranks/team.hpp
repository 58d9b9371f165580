#pragma once
/// The ranks of a plan as threads of one process, watched: whoever fails or holds the others up is named, and all
/// leave.

#include <functional>
#include <stdexcept>
#include <string>

#include "executor/comm/in_process.hpp"
#include "executor/comm/watchdog.hpp"

namespace moeplan {

/// A rank of the team failed, or held up the others beyond the limit. what(): "rank 3 on gpu07: forward dispatch, ...:
/// reason".
class RankFailed : public std::runtime_error {
 public:
  explicit RankFailed(Verdict verdict) : std::runtime_error(verdict.text()), verdict_(std::move(verdict)) {}
  [[nodiscard]] const Verdict& verdict() const { return verdict_; }

 private:
  Verdict verdict_;
};

struct TeamOptions {
  std::string host = "this host";
  Duration limit{300000};  ///< how long a rank may wait in one communication call
};

/// Runs `body` once per rank. What the ranks are given lives until all have ended. Throws the InputError of the first
/// rank that throws one, otherwise RankFailed about the first that failed, when all have ended; a thread that never
/// returns from its own computation cannot be ended and is waited for.
void run_team(int ranks, const std::function<void(Communicator&, Progress&)>& body, const TeamOptions& options = {});

}  // namespace moeplan
