#include "executor/nccl/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "core/error.hpp"

namespace moeplan {
namespace {

constexpr const char* kName = "libnccl.so.2";

template <class Call>
void find(void* library, const char* name, Call& call) {
  call = reinterpret_cast<Call>(::dlsym(library, name));
  if (!call) throw InputError(kName, fmt::format("has no {}", name), "NCCL 2.28 or later");
}

NcclLibrary load() {
  void* const library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw InputError(kName, "cannot be loaded, and ranks in several processes exchange over it", "install NCCL 2.28 or later");
  NcclLibrary n{};
  find(library, "ncclGetVersion", n.get_version);
  find(library, "ncclGetUniqueId", n.get_unique_id);
  find(library, "ncclGetErrorString", n.get_error_string);
  find(library, "ncclGetLastError", n.get_last_error);
  find(library, "ncclCommInitRankConfig", n.comm_init_rank_config);
  find(library, "ncclCommSplit", n.comm_split);
  find(library, "ncclCommFinalize", n.comm_finalize);
  find(library, "ncclCommDestroy", n.comm_destroy);
  find(library, "ncclCommAbort", n.comm_abort);
  find(library, "ncclCommGetAsyncError", n.comm_get_async_error);
  find(library, "ncclGroupStart", n.group_start);
  find(library, "ncclGroupEnd", n.group_end);
  find(library, "ncclAllReduce", n.all_reduce);
  find(library, "ncclAllGather", n.all_gather);
  find(library, "ncclReduceScatter", n.reduce_scatter);
  find(library, "ncclSend", n.send);
  find(library, "ncclRecv", n.receive);
  n.comm_register = reinterpret_cast<decltype(n.comm_register)>(::dlsym(library, "ncclCommRegister"));
  n.comm_deregister = reinterpret_cast<decltype(n.comm_deregister)>(::dlsym(library, "ncclCommDeregister"));
  n.comm_revoke = reinterpret_cast<decltype(n.comm_revoke)>(::dlsym(library, "ncclCommRevoke"));
  return n;
}

}  // namespace

const NcclLibrary& nccl() {
  static const NcclLibrary library = load();
  return library;
}

}  // namespace moeplan
