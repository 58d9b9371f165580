#include "executor/nccl/world.hpp"

#include <system_error>
#include <thread>

#include "executor/nccl/library.hpp"

namespace moeplan {
namespace {

constexpr int kRevokeDefault = 0;  // NCCL_REVOKE_DEFAULT, which headers before 2.28.7 lack

}  // namespace

NcclWorld::~NcclWorld() {
  for (cudaStream_t each : {stream, beside})
    if (each) cudaStreamDestroy(each);
}

void NcclWorld::abort(const std::string& why) noexcept {
  std::vector<ncclComm_t> stopped;
  {
    const std::lock_guard lock(mutex);
    if (!aborted) {
      reason = why;
      aborted = true;
    }
    if (!connected) return;
    // Revoke stops what is in flight without freeing: the owning thread may be inside a CUDA call that waits for it.
    if (nccl().comm_revoke) {
      for (ncclComm_t comm : live) nccl().comm_revoke(comm, kRevokeDefault);
      return;
    }
    stopped.swap(live);
  }
  // Before 2.28.7 only abort stops a kernel that waits for a peer. It frees memory too, which waits for the whole device, so all must be
  // stopping before one is freed: a thread for each. Nobody uses a handle from here on: every use asks `aborted` first, under the mutex.
  std::vector<std::thread> threads;
  try {
    for (ncclComm_t comm : stopped) threads.emplace_back([comm] { nccl().comm_abort(comm); });
  } catch (const std::system_error&) {   // no thread to be had: what is left stays as it is, and the process is ended after the grace
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace moeplan
