#pragma once
/// `moeplan run` as one process of several: forked here (`--ranks N` devices, or one process per node under a launcher), or started by a
/// launcher one by one. They find each other by the rendezvous, exchange over NCCL (CPU ranks: shared memory), and leave together.

#include <functional>
#include <memory>
#include <optional>

#include "cli/command.hpp"
#include "executor/comm/communicator.hpp"
#include "executor/rendezvous/environment.hpp"
#include "executor/rendezvous/rank_process.hpp"
#include "executor/rendezvous/secure.hpp"

namespace moeplan::cli {

/// This process among those of its job.
struct Job {
  ProcessPlace place;
  Token token{};
};

/// Where `ranks` devices of this machine are asked for, or the environment or flags say that there are several processes. Forks those
/// that this process must start, with `may_fork` also those that only `ranks` asks for; the caller goes on as one of them. In their
/// parent, which only waits, `ended` gets the exit code.
[[nodiscard]] std::optional<Job> find_job(int ranks, bool may_fork, const RankFlags& flags, const std::optional<std::string>& token_file, std::optional<int>& ended);

/// What carries a backend's data between processes: NCCL for "cuda", else memory that the processes of this machine share. `ready` opens the device.
/// Throws InputError where this program was built without NCCL.
[[nodiscard]] Transport transport_of(const std::string& backend, std::function<void()> ready);

/// Joins the others, who must be of the same version and have `alike` alike, and calls `body` with the world of all ranks. `limit`, `stall`: as in `RankProcess`. Whoever fails is named in a
/// note, on every rank, with exit code 4.
[[nodiscard]] Output run_job(const Job& job, Duration limit, Duration stall, const Transport& transport, std::vector<std::pair<std::string, std::string>> alike, const std::function<Output(Communicator&, Progress&)>& body);

}  // namespace moeplan::cli
