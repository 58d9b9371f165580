#pragma once
/// How communication and compute of one device slow each other.
///
/// Multiprocessors: communication kernels are resident on some of them; compute-bound kernels run on the rest. Memory: every byte that
/// a call moves is read on one device and written on another; bandwidth-bound kernels have what is left. A step that spends a
/// share b of its time at the memory's bandwidth and the rest at the multiprocessors then runs at
///   1 / ((1 - b) / (1 - m) + b / (1 - w)),   m, w: shares of multiprocessors and bandwidth taken.
/// The other way round, an expert exchange keeps kOverlappedExchangeRate of its speed while compute runs (measured).
/// Sources: DeepEP's 20 multiprocessors for normal kernels (its README; V3 report, section 3.2.2); NCCL's channels of a
/// large collective, one block each: 24 on Hopper, 16 from Blackwell on (2.28's default), 8 for a pair of neighbours.

#include <algorithm>
#include <string_view>

#include "sim/program/graph.hpp"

namespace moeplan {

inline constexpr double kExchangeMultiprocessors = 20, kCollectiveMultiprocessors = 24, kCollectiveMultiprocessorsBlackwell = 16, kNeighbourMultiprocessors = 8;

[[nodiscard]] inline double multiprocessors_of(Collective collective, std::string_view generation) {
  switch (collective) {
    case Collective::dispatch: case Collective::combine: return kExchangeMultiprocessors;
    case Collective::send_receive: case Collective::state_chain: case Collective::state_scan: return kNeighbourMultiprocessors;
    case Collective::to_host: case Collective::from_host: return 0;   // copy engines
    default: return generation == "blackwell" ? kCollectiveMultiprocessorsBlackwell : kCollectiveMultiprocessors;
  }
}

/// Bytes that a call of a group of `members` moves through one device's memory, per byte of payload: what is sent is read, what
/// comes is written, and a reduction also reads what it adds to.
[[nodiscard]] inline double memory_traffic(Collective collective, double members) {
  const double others = members > 1 ? (members - 1) / members : 0;
  switch (collective) {
    case Collective::all_gather: return 2 * others;
    case Collective::reduce_scatter: return 3 * others;
    case Collective::all_reduce: return 5 * others;
    case Collective::dispatch: case Collective::combine: return 2;
    case Collective::send_receive: case Collective::to_host: case Collective::from_host: return 1;
    case Collective::all_to_all: return 2 * others;
    case Collective::state_chain: case Collective::state_scan: return 2;
  }
  return 0;
}

/// Speed of a compute step beside what is taken.
[[nodiscard]] inline double slowed(double memory_bound, double multiprocessors, double memory) {
  constexpr double most = 0.95;
  return 1 / ((1 - memory_bound) / (1 - std::min(multiprocessors, most)) + memory_bound / (1 - std::min(memory, most)));
}

}  // namespace moeplan
