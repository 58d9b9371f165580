#pragma once
/// What stands in for NCCL and the CUDA run time in tests without a GPU: only the opening of a world, by several processes.

#include <atomic>
#include <chrono>

namespace moeplan {

/// In memory that the processes share.
struct StandIn {
  static constexpr int kNobody = -1;
  std::atomic<int> came{0};                     ///< ranks whose ncclCommInitRankConfig has been called
  std::atomic<long long> last_came{0};          ///< ns of the steady clock
  std::chrono::milliseconds connecting{0};      ///< what the opening takes once all have come
  int hangs_in_init = kNobody;                  ///< this rank's ncclCommInitRankConfig does not return
  int hangs_in_poll = kNobody;                  ///< nor this one's third ncclCommGetAsyncError
};

/// Of the library that was loaded in NCCL's place.
extern StandIn* stand_in;

}  // namespace moeplan
