#pragma once
/// Time and traffic of communication calls on a cluster: latency + bytes on the bottleneck link / reachable rate, per tier from
/// the scale-up domain to the fabric. Collectives choose algorithm and protocol as NCCL 2.28.9 does, by the least predicted time.
/// Formulas, sources and the comparison with measured rows: docs/cost.md.

#include <array>
#include <memory>

#include "core/spec/cluster.hpp"
#include "core/spec/results.hpp"
#include "core/spec/runtime.hpp"
#include "sim/cost/expert_places.hpp"
#include "sim/cost/link_samples.hpp"
#include "sim/program/graph.hpp"

namespace moeplan {

/// Where a group lies: its i-th member is rank first + i x stride; ranks fill the devices of a node, nodes fill a domain.
struct GroupShape {
  std::int64_t size = 1;
  std::int64_t stride = 1;
  bool operator==(const GroupShape&) const = default;
};

inline constexpr std::size_t kMaxTiers = 4;

/// Bytes that one device sends over its link of each tier, inside out.
using TierBytes = std::array<double, kMaxTiers>;

/// Share of its isolated rate that an expert exchange keeps while compute runs beside it: 0.5-0.8, DeepSeek's production trace
/// (H800, EP64: 26 and 34 GB/s against 50-51 isolated; github.com/deepseek-ai/profile-data).
inline constexpr double kOverlappedExchangeRate = 0.65;

/// Something of a device is left to compute, whatever its calls hold.
inline constexpr double kMostLent = 0.95;

/// Share of a host link's data-sheet rate that large copies from pinned memory reach: 55 of 63 GB/s of PCIe 5.0 x16, one direction
/// (protocol overhead of 128-byte payloads leaves 0.87-0.9). Both directions run at once.
inline constexpr double kHostLinkShare = 0.87;

/// Prices communication calls; built once per problem, const and thread-safe afterwards.
class Links {
 public:
  /// `places`: where the experts of dispatch and combine lie. With a profile of this device, calls that it has measured over as many ranks, of one
  /// innermost domain or consecutive ones beyond it, take their measured time.
  explicit Links(const ClusterSpec& cluster, const Runtime& runtime = {}, const ExpertPlaces& places = {}, const DeviceProfile& profile = {});

  /// The same links where experts lie elsewhere.
  [[nodiscard]] Links placed(const ExpertPlaces& places) const;

  /// Time of one call of a group alone on its links. `skew`: busiest rank's received rows over the mean (sim/load); it stretches
  /// the transfer of dispatch and combine. A group of one costs nothing. This project's executor also puts exchanged rows in the
  /// order of the experts, a copy for each expert and rank (executor/walk/exchange.cpp): that is added where the exchange was measured.
  [[nodiscard]] Estimate price(const CommCall& call, GroupShape group, double skew = 1) const;

  /// Dropless dispatch: the counts are exchanged and read by the host. The upper bound is what a production trace shows when
  /// ranks arrive apart.
  [[nodiscard]] Estimate host_wait(GroupShape group) const;

  /// Traffic of one call, for contention: flows that share a link add their bytes, they do not overlap freely.
  [[nodiscard]] TierBytes bytes(const CommCall& call, GroupShape group) const;

  /// Share of its computing that a device loses to a call while it runs, 0 to below 1: measured where the profile has it of groups of the same outermost
  /// tier (LinkSamples::share), else the multiprocessors that the call's kernels hold (channels.hpp). Copy engines take none.
  [[nodiscard]] double lent(const CommCall& call, GroupShape group) const;

  /// Bytes/s that one device reaches on a tier, for collectives or for expert exchanges.
  [[nodiscard]] double rate(std::size_t tier, bool exchange) const;

  /// Members of the group inside one domain of each tier.
  [[nodiscard]] std::array<double, kMaxTiers> members(GroupShape group) const;
  [[nodiscard]] std::size_t tiers() const { return tiers_; }

 private:
  struct Tier {
    LinkKind kind;
    double span, bandwidth, collective_rate, exchange_rate, in_network_rate, latency, dispatch_latency, channels, send_channels;
  };
  [[nodiscard]] double collective(Collective op, double payload, GroupShape group) const;
  [[nodiscard]] bool lies_as_measured(GroupShape group) const;
  [[nodiscard]] std::optional<Estimate> measured(const CommCall& call, GroupShape group, double skew) const;
  [[nodiscard]] double ordering(const CommCall& call, GroupShape group, double skew) const;
  /// Seconds before a message's first byte arrives (NCCL Simple, one hop).
  [[nodiscard]] double message_latency(std::size_t tier) const;
  [[nodiscard]] double all_reduce_tree(double payload, const std::array<double, kMaxTiers>& m) const;

  std::array<Tier, kMaxTiers> tier_{};
  std::size_t tiers_ = 0;
  ExpertPlaces places_;
  bool deduplicated_;
  bool orders_rows_;
  double launch_;
  double host_rate_, memory_rate_, multiprocessors_;
  std::shared_ptr<const LinkSamples> samples_;   ///< null without any
};

}  // namespace moeplan
