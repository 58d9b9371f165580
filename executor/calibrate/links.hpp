#pragma once
/// The links between ranks, measured: what the executor's collectives take, as it issues them, by payload.

#include <functional>
#include <vector>

#include "core/spec/profile.hpp"
#include "executor/backend/backend.hpp"
#include "executor/comm/communicator.hpp"

namespace moeplan {

struct LinkOptions {
  std::int64_t least_bytes = 1 << 10, most_bytes = std::int64_t{1} << 29;   ///< payloads, in steps of 4 from the least on
  int batches = 7;                                                          ///< a sample is their median
};

/// Times all_gather, reduce_scatter, all_reduce, the expert exchange ("dispatch": equal rows to every rank), send_receive of neighbours
/// and the exchange of 64 counts over the host ("counts")
/// on all ranks of `world`, from the call to the end of `wait`; several calls a batch where they are short, as a step queues them. A figure is
/// the slowest rank's. Keys: "all_gather payload=1048576 ranks=2"; payloads as `CommCounter` counts them. Collective; the samples are on all
/// ranks.
[[nodiscard]] std::vector<ProfileSample> time_links(Communicator& world, Backend& backend, const LinkOptions& options = {});

/// Latency and rate of one collective, by least squares of relative errors over its samples: seconds = latency + payload / rate.
struct LinkFit {
  std::string collective;
  std::int64_t ranks = 0;
  double latency = 0;   ///< s
  double rate = 0;      ///< payload bytes/s
  double worst = 0;     ///< largest relative error of the fit at its samples
};
[[nodiscard]] std::vector<LinkFit> fit_links(const std::vector<ProfileSample>& samples);

}  // namespace moeplan
