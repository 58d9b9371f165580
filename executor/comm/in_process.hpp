#pragma once
/// Ranks as threads of one process: what every parallelism is proved with on a machine without GPUs. Blocking, no polling: a
/// rank sleeps until the last one of its group arrives, then each does its own part of the work, so results do not depend on
/// who came first. Calls that differ between ranks are refused with both ranks named; a rank that ends, fails or does not come
/// within the limit makes every other one leave its call.

#include <functional>
#include <memory>
#include <string>

#include "executor/comm/communicator.hpp"

namespace moeplan {

struct InProcessOptions {
  Duration limit{60000};     ///< how long a rank waits for the others in one call; 0: for ever
};

/// Shared by the ranks of one run; outlives their communicators.
class InProcessWorld {
 public:
  explicit InProcessWorld(int ranks, InProcessOptions options = {});
  ~InProcessWorld();
  InProcessWorld(const InProcessWorld&) = delete;
  InProcessWorld& operator=(const InProcessWorld&) = delete;

  /// The communicator "world" as rank `rank` sees it; once per rank.
  [[nodiscard]] std::unique_ptr<Communicator> communicator(int rank);
  /// Every rank leaves the call it is in, and refuses the next.
  void abort(const std::string& reason) noexcept;
  /// World rank `rank` issues nothing more: who waits for it leaves with `peer_lost`.
  void leave(int rank) noexcept;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// Runs `body` once per rank, each on its own thread. When a rank throws, the others leave; the first exception is thrown again
/// when all have ended.
void run_ranks(int ranks, const std::function<void(Communicator&)>& body, InProcessOptions options = {});

}  // namespace moeplan
