#pragma once
/// Ranks as processes of one machine that exchange through shared memory: what faults of real processes are proved with where there is no
/// GPU. Host buffers only. The memory has no name: rank 0 makes it and the others open it by its process, so nothing is left when all are
/// gone, however they went. Reductions add in rank order, as `in_process` does, so both give the same bits.

#include <memory>
#include <string>

#include "executor/comm/communicator.hpp"

namespace moeplan {

/// Most ranks of a world.
inline constexpr int kMostSharedRanks = 16;

/// Rank 0 makes the memory; what comes back travels to the others by the rendezvous. Throws std::system_error where the kernel has none.
[[nodiscard]] std::string offer_shared_memory();

/// The communicator "world" on what rank 0 offered. Collective; throws CommError `timeout` at the limit, which holds for every later call
/// too. Throws InputError for more ranks than `kMostSharedRanks`, or where the offer is of another machine.
[[nodiscard]] std::unique_ptr<Communicator> shared_memory_communicator(int rank, int ranks, const std::string& offer, Duration limit);

}  // namespace moeplan
