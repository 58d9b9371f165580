#pragma once
/// What the NCCL communicators of one world share: who aborts one aborts all.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace moeplan {

struct NcclWorld {
  std::mutex mutex;                        ///< guards `live` and every use of a handle in it
  std::vector<ncclComm_t> live;
  bool connected = false;                  ///< until then its owner, who polls, ends it: NCCL's threads still make it
  std::atomic<bool> aborted{false};
  std::string reason;                      ///< written once, before `aborted`
  std::vector<std::shared_ptr<void>> kept; ///< memory that was registered when all was aborted: until the last communicator is gone
  cudaStream_t stream = nullptr;           ///< of its own, where the caller named none
  cudaStream_t beside = nullptr;           ///< the second, once a communicator has moved there

  NcclWorld() = default;
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;
  ~NcclWorld();

  /// Stops what is in flight on all communicators, from any thread. The first reason stays.
  void abort(const std::string& why) noexcept;
};

}  // namespace moeplan
