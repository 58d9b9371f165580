#pragma once
/// How communication and compute of one device slow each other.
///
/// Multiprocessors: communication kernels are resident on some of them (Links::lent); compute kernels run on the rest. That is in every step as it is planned.
/// What follows is played on request. Memory: every byte that a call moves is read on one device and written on another; bandwidth-bound kernels have what is
/// left, and no more than the other multiprocessors move (convolutions beside a gather took 1.27 times as long on an H200). A step that spends a share b of its
/// time at the memory's bandwidth and the rest at the multiprocessors then runs at
///   1 / ((1 - b) / (1 - m) + b / (1 - max(m, w))),   m, w: shares of multiprocessors and bandwidth taken.
/// The other way round, an expert exchange keeps kOverlappedExchangeRate of its speed while compute runs (measured).

#include <algorithm>

#include "sim/cost/collectives.hpp"

namespace moeplan {

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
  return 1 / ((1 - memory_bound) / (1 - std::min(multiprocessors, kMostLent)) + memory_bound / (1 - std::min(std::max(multiprocessors, memory), kMostLent)));
}

}  // namespace moeplan
