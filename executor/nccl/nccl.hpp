#pragma once
/// The communicator over NCCL (2.28 or later): one process and one device per rank. Non-blocking communicators throughout: each
/// call is enqueued on the stream, and every wait of the host is a poll of ncclCommGetAsyncError with a limit, so that a dead
/// peer ends in a `CommError` instead of a hang. The header needs neither CUDA's nor NCCL's.
///
/// All-to-all with counts is grouped send/receive: NCCL has no ncclAllToAllv (checked up to 2.30). NCCL's own sockets are not
/// authenticated: use a private network.

#include <array>
#include <map>
#include <memory>
#include <string>

#include "executor/comm/communicator.hpp"

namespace moeplan {

using NcclId = std::array<std::byte, 128>;

struct NcclOptions {
  void* stream = nullptr;          ///< cudaStream_t that carries the calls; one of its own by default
  Duration limit{60000};           ///< for set-up, split, tear-down and for each `wait`
  int max_ctas = 0;                ///< multiprocessors a call may take; 0: NCCL decides
  bool share_on_split = false;     ///< communicators split off share the parent's channels (less memory, no overlap with it)
  bool collnet_on_split = false;   ///< in-network reduction on communicators split off; memory for each if on
};

/// Rank 0 makes it, the rendezvous carries it to the others.
[[nodiscard]] NcclId nccl_unique_id();
/// "2.28.9", of the library that is loaded.
[[nodiscard]] std::string nccl_version();

/// What must be in the environment before the first call, where the user has not set it: NVLink multicast (NVLS) off, because
/// 2.28 can switch it only for the whole process and every split communicator would take hundreds of MB of device memory; the
/// RAS status port on loopback only; kernels of different communicators launched in the order in which the host issues them, which
/// is the same on all ranks (communicators on two queues could else each wait for the other's place on the device).
[[nodiscard]] const std::map<std::string, std::string>& nccl_environment_defaults();

/// The communicator "world" of `ranks` ranks on the current CUDA device: this rank's own part of opening it. `connect` waits for the others, until when
/// nothing else can be called; it throws CommError `timeout` at the limit.
[[nodiscard]] std::unique_ptr<Communicator> nccl_communicator(int rank, int ranks, const NcclId& id, const NcclOptions& options);

/// Later calls go to this cudaStream_t. Throws std::bad_cast if `communicator` is none of NCCL's.
void nccl_use_stream(Communicator& communicator, void* stream);

}  // namespace moeplan
