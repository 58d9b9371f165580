#pragma once
/// The machines: devices, memory tiers, links from the scale-up domain to the fabric, price. Every figure names its source.

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/fields.hpp"

namespace moeplan {

/// One kind of accelerator (or CPU).
struct DeviceSpec {
  std::string name;
  std::string generation;                            ///< "hopper", "blackwell", "ampere", "cdna3", "ascend", "cpu": which measured profile may stand in
  Bytes memory{};                                    ///< as the driver reports it, before context and libraries
  BytesPerSecond memory_bandwidth{};                 ///< data sheet
  std::map<std::string, FlopsPerSecond> peak;        ///< dense, per compute dtype: bf16 always; fp8, fp4, f32 where the device has them
  double achieved_matmul = 0.75;                     ///< published large-GEMM rate over the bf16 peak
  double achieved_bandwidth = 0.85;                  ///< published copy rate over the data sheet
  double sustained = 1;                              ///< GEMM rate held through a training step over that of a lone call (power limit)
  std::int64_t multiprocessors = 0;
  BytesPerSecond host_link{};                        ///< device <-> host, one direction
  std::map<std::string, std::string> sources;        ///< field -> where its figure comes from
  bool operator==(const DeviceSpec&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("name", &DeviceSpec::name).required(), field("generation", &DeviceSpec::generation).required(),
                           field("memory", &DeviceSpec::memory, "usable, driver-reported").required().above(0).at_most(1e15),
                           field("memory_bandwidth", &DeviceSpec::memory_bandwidth).required().above(0).at_most(1e16),
                           field("peak", &DeviceSpec::peak, "dense FLOP/s per dtype").required().above(0).at_most(1e18),
                           field("achieved_matmul", &DeviceSpec::achieved_matmul).above(0).at_most(1),
                           field("achieved_bandwidth", &DeviceSpec::achieved_bandwidth).above(0).at_most(1),
                           field("sustained", &DeviceSpec::sustained).above(0).at_most(1),
                           field("multiprocessors", &DeviceSpec::multiprocessors).between(0, 1 << 20),
                           field("host_link", &DeviceSpec::host_link).at_least(0).at_most(1e16), field("sources", &DeviceSpec::sources));
  }
};

/// What kind of wire a tier is: which latencies of NCCL's tables hold on it.
enum class LinkKind : std::uint8_t {
  scale_up,  ///< NVLink, xGMI, UB: load/store reachable
  pcie,      ///< peers over PCIe or host memory
  network,   ///< NIC and switches
};
template <>
struct EnumNames<LinkKind> {
  static constexpr std::array names{std::pair{LinkKind::scale_up, std::string_view("scale_up")}, std::pair{LinkKind::pcie, std::string_view("pcie")},
                                    std::pair{LinkKind::network, std::string_view("network")}};
};

/// One tier of links: all ranks whose index agrees up to `span` reach each other through it. Tiers are listed inside out.
/// An oversubscribed fabric is one more tier with less bandwidth per device.
struct LinkTier {
  std::string name;                                  ///< "NVLink4", "IB NDR"
  LinkKind kind = LinkKind::network;
  std::int64_t span = 0;                             ///< devices in one domain of this tier; 0 in a file: the whole cluster
  BytesPerSecond bandwidth{};                        ///< per device, one direction, line rate
  double efficiency = 0.8;                           ///< reachable share of the line rate, large ring collective
  double all_to_all_efficiency = 0.65;               ///< same, tuned expert dispatch and combine
  double in_network_reduction = 0;                   ///< all-reduce payload per second over the line rate where the switch adds up (NVLS); 0 without
  Seconds latency{};                                 ///< one hop, low-latency protocol (NCCL LL)
  Seconds dispatch_latency{};                        ///< one expert dispatch or combine of few bytes
  std::string source;
  bool operator==(const LinkTier&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("name", &LinkTier::name).required(), field("kind", &LinkTier::kind, "scale_up, pcie or network").required(),
                           field("span", &LinkTier::span, "devices per domain, 0 for the whole cluster").required().between(0, 1 << 20),
                           field("bandwidth", &LinkTier::bandwidth, "per device, one direction").required().above(0).at_most(1e16),
                           field("efficiency", &LinkTier::efficiency, "ring collective over line rate").above(0).at_most(1),
                           field("all_to_all_efficiency", &LinkTier::all_to_all_efficiency, "expert exchange over line rate").above(0).at_most(1),
                           field("in_network_reduction", &LinkTier::in_network_reduction, "all-reduce payload/s over line rate, 0 without").between(0, 1),
                           field("latency", &LinkTier::latency, "one hop").required().at_least(0).at_most(1),
                           field("dispatch_latency", &LinkTier::dispatch_latency, "one small expert exchange").at_least(0).at_most(1),
                           field("source", &LinkTier::source).required());
  }
};

/// The machine that a device usually comes in; `cluster_of` multiplies it.
struct NodeSpec {
  std::int64_t devices = 0;
  Bytes host_memory{};                               ///< installed, per node; 0: not known, nothing can be offloaded
  std::vector<LinkTier> tiers;
  std::optional<DollarsPerHour> price;               ///< per device-hour
  std::string price_source, source;
  bool operator==(const NodeSpec&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("devices", &NodeSpec::devices, "per node").required().between(1, 1024),
                           field("host_memory", &NodeSpec::host_memory, "per node").at_least(0).at_most(1e16),
                           field("tiers", &NodeSpec::tiers, "links, inside out").required(),
                           field("price", &NodeSpec::price, "per device-hour").above(0).at_most(1e6), field("price_source", &NodeSpec::price_source),
                           field("source", &NodeSpec::source).required());
  }
};

/// A file of configs/devices.
struct DeviceEntry {
  DeviceSpec device;
  NodeSpec node;
  bool operator==(const DeviceEntry&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("device", &DeviceEntry::device).required(), field("node", &DeviceEntry::node, "the machine it usually comes in").required());
  }
};

struct ClusterSpec {
  std::string name = "custom";
  std::string source;
  DeviceSpec device;
  std::int64_t nodes = 0;
  std::int64_t devices_per_node = 0;
  Bytes host_memory{};                               ///< per node, installed; 0: not known
  std::vector<LinkTier> tiers;
  std::optional<DollarsPerHour> price;               ///< per device-hour
  std::string price_source;
  bool operator==(const ClusterSpec&) const = default;
  [[nodiscard]] std::int64_t devices() const { return nodes * devices_per_node; }
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("name", &ClusterSpec::name), field("source", &ClusterSpec::source), field("device", &ClusterSpec::device).required(),
                           field("nodes", &ClusterSpec::nodes).required().between(1, 1 << 20),
                           field("devices_per_node", &ClusterSpec::devices_per_node).required().between(1, 1024),
                           field("host_memory", &ClusterSpec::host_memory, "per node").at_least(0).at_most(1e16),
                           field("tiers", &ClusterSpec::tiers, "links, inside out").required(),
                           field("price", &ClusterSpec::price, "per device-hour").above(0).at_most(1e6), field("price_source", &ClusterSpec::price_source));
  }
};

}  // namespace moeplan
