#pragma once
/// The machines: devices, memory tiers, links from the scale-up domain to the fabric, price. Every figure names its source.

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
  std::int64_t multiprocessors = 0;
  BytesPerSecond host_link{};                        ///< device <-> host, one direction
  std::map<std::string, std::string> sources;        ///< field -> where its figure comes from
  bool operator==(const DeviceSpec&) const = default;
  static constexpr auto fields() {
    return std::make_tuple(field("name", &DeviceSpec::name).required(), field("generation", &DeviceSpec::generation).required(),
                           field("memory", &DeviceSpec::memory, "usable, driver-reported").required().above(0).at_most(1e15),
                           field("memory_bandwidth", &DeviceSpec::memory_bandwidth).required().above(0).at_most(1e16),
                           field("peak", &DeviceSpec::peak, "dense FLOP/s per dtype").required().above(0).at_most(1e18),
                           field("achieved_matmul", &DeviceSpec::achieved_matmul).above(0).at_most(1),
                           field("achieved_bandwidth", &DeviceSpec::achieved_bandwidth).above(0).at_most(1),
                           field("multiprocessors", &DeviceSpec::multiprocessors).between(0, 1 << 20),
                           field("host_link", &DeviceSpec::host_link).at_least(0).at_most(1e16), field("sources", &DeviceSpec::sources));
  }
};

/// One tier of links: all ranks whose index agrees up to `span` reach each other through it. Tiers are listed inside out.
struct LinkTier {
  std::string name;                                  ///< "NVLink4", "IB NDR"
  std::int64_t span = 1;                             ///< devices in one domain of this tier; the outermost spans the cluster
  BytesPerSecond bandwidth{};                        ///< per device, one direction, line rate
  double efficiency = 0.8;                           ///< reachable share of the line rate
  Seconds latency{};                                 ///< one collective step
  std::string source;
  bool operator==(const LinkTier&) const = default;
  static constexpr auto fields() {
    return std::make_tuple(field("name", &LinkTier::name).required(), field("span", &LinkTier::span, "devices per domain").required().between(1, 1 << 20),
                           field("bandwidth", &LinkTier::bandwidth, "per device, one direction").required().above(0).at_most(1e16),
                           field("efficiency", &LinkTier::efficiency).above(0).at_most(1), field("latency", &LinkTier::latency).required().at_least(0).at_most(1),
                           field("source", &LinkTier::source));
  }
};

struct ClusterSpec {
  std::string name = "custom";
  std::string source;
  DeviceSpec device;
  std::int64_t nodes = 0;
  std::int64_t devices_per_node = 0;
  Bytes host_memory{};                               ///< per node, usable
  std::vector<LinkTier> tiers;
  std::optional<DollarsPerHour> price;               ///< per device-hour
  std::string price_source;
  bool operator==(const ClusterSpec&) const = default;
  [[nodiscard]] std::int64_t devices() const { return nodes * devices_per_node; }
  static constexpr auto fields() {
    return std::make_tuple(field("name", &ClusterSpec::name), field("source", &ClusterSpec::source), field("device", &ClusterSpec::device).required(),
                           field("nodes", &ClusterSpec::nodes).required().between(1, 1 << 20),
                           field("devices_per_node", &ClusterSpec::devices_per_node).required().between(1, 1024),
                           field("host_memory", &ClusterSpec::host_memory, "per node").at_least(0).at_most(1e16),
                           field("tiers", &ClusterSpec::tiers, "links, inside out").required(),
                           field("price", &ClusterSpec::price, "per device-hour").above(0).at_most(1e6), field("price_source", &ClusterSpec::price_source));
  }
};

}  // namespace moeplan
