/// libnccl.so.2 of the tests: communicators that are opened without blocking, and nothing else.

#include <nccl.h>
#include <unistd.h>

#include "tests/executor/nccl/stand_in.hpp"

namespace moeplan {
StandIn* stand_in = nullptr;
}

struct ncclComm {
  int rank, ranks, asked;
};

namespace {

using moeplan::stand_in;

long long now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

[[noreturn]] void hang() {
  for (;;) ::pause();
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return *id = {}, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "an error of the stand-in"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  if (rank == stand_in->hangs_in_init) hang();
  *comm = new ncclComm{rank, ranks, 0};
  stand_in->last_came = now();
  ++stand_in->came;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (++comm->asked == 3 && comm->rank == stand_in->hangs_in_poll) hang();
  const bool open = stand_in->came == comm->ranks && now() >= stand_in->last_came + std::chrono::nanoseconds(stand_in->connecting).count();
  return *state = open ? ncclSuccess : ncclInProgress, ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return delete comm, ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }   // its owner may still ask it

ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*) { return ncclInvalidUsage; }
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) { return ncclInvalidUsage; }
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) { return ncclInvalidUsage; }
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) { return ncclInvalidUsage; }
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return ncclInvalidUsage; }
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return ncclInvalidUsage; }

}  // extern "C"
