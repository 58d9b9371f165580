#pragma once
/// NCCL, loaded when it is first asked for, so that the program starts on machines without it.

#include <nccl.h>

namespace moeplan {

/// The calls that the communicator makes, of the library that was found.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommSplit) comm_split;
  decltype(&ncclCommFinalize) comm_finalize;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclCommRegister) comm_register;       ///< null where it has none, as the two below
  decltype(&ncclCommDeregister) comm_deregister;
  ncclResult_t (*comm_revoke)(ncclComm_t, int);  ///< from 2.28.7 on
};

/// Throws InputError where there is no libnccl.so.2, or one that is too old for these calls.
[[nodiscard]] const NcclLibrary& nccl();

}  // namespace moeplan
