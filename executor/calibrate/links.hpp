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

struct DelayOptions {
  OpCall product;              ///< what is computed beside the calls
  std::int64_t bytes = 0;      ///< payload, one of those of `alone`
  Seconds calls{0.05};         ///< so long about are the calls of a batch alone
  int batches = 5;
};

/// How much longer products take beside a call of each collective that `alone` (of `time_links`) has at this payload: so many products that they take twice as
/// long as the calls are timed alone and with calls beside them, one after every few, until both are done. What two batches in turn differ by, over the calls:
/// "delay all_gather payload=67108864 ranks=2", the median; the slowest rank's times. Where a call blocks (threads) its delay is all of it. Where batches differ by more
/// than their median, or took no longer together, its spread is above 1.
[[nodiscard]] std::vector<ProfileSample> time_delays(Communicator& world, Backend& backend, const std::vector<ProfileSample>& alone, const DelayOptions& options);

/// Both of `world` and of 2, 4, 8 and so on of its ranks, as far as that divides their number: neighbours, all groups of a size at once as in a
/// step, each with its figures. `delays.bytes` 0: no delays.
[[nodiscard]] std::vector<ProfileSample> time_groups(Communicator& world, Backend& backend, const LinkOptions& options, const DelayOptions& delays);

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
