#pragma once
/// The cluster as a directed graph of ports and switches, built from its link tiers. A tier that devices plug into (scale-up
/// domain, PCIe, the first network tier) is one switch per domain with a port per device and direction; every further tier is
/// one switch per domain above those of the tier before, joined by uplinks. An oversubscribed fabric is an uplink narrower than
/// the sum of the ports below it.
///
/// Only some devices may be played (one per pipeline stage when equal ranks are folded). An uplink then has the share of the
/// devices that are played, since the others load it alike: its tier's bandwidth per device x the played devices below it.

#include <array>
#include <boost/graph/adjacency_list.hpp>
#include <span>

#include "core/spec/cluster.hpp"
#include "sim/cost/collectives.hpp"
#include "sim/engine/fair_share.hpp"

namespace moeplan {

struct NetworkVertex {
  std::int64_t device = -1;     ///< of a device, else -1
  std::int32_t tier = -1;       ///< of a switch, else -1
};
struct NetworkEdge {
  std::int32_t link = 0;        ///< index in FairShare
  std::int32_t tier = 0;
};
using NetworkGraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, NetworkVertex, NetworkEdge>;

class Network {
 public:
  /// `devices`: those that are played, ascending. Link capacities are what collectives or expert exchanges reach of the line
  /// rate, whichever is more: `bandwidth x max(efficiency, all_to_all_efficiency)`.
  Network(const ClusterSpec& cluster, std::span<const std::int64_t> devices, FairShare& links);

  [[nodiscard]] const NetworkGraph& graph() const { return graph_; }
  /// Links from one played device (by position in `devices`) to another: through the innermost tier that joins them. Empty for one and the same.
  [[nodiscard]] std::vector<std::int32_t> route(std::size_t from, std::size_t to) const;

  /// What a device's share of a collective puts on its links: it sends and receives `bytes[t]` over tier t within `duration`
  /// seconds. What crosses an outer network tier also passes the network port and the uplinks below.
  [[nodiscard]] std::vector<LinkUse> collective(std::size_t device, const TierBytes& bytes, double duration) const;
  /// One message along the route.
  [[nodiscard]] std::vector<LinkUse> message(std::size_t from, std::size_t to, double bytes, double duration) const;

 private:
  using Vertex = boost::graph_traits<NetworkGraph>::vertex_descriptor;
  std::int32_t join(Vertex a, Vertex b, std::int32_t tier, double capacity, FairShare& links);
  NetworkGraph graph_;
  std::vector<Vertex> device_;
  /// Per device and tier: links to that tier's switch and back.
  std::vector<std::array<std::vector<std::int32_t>, kMaxTiers>> reach_;
  std::vector<std::int64_t> spans_;             ///< per tier: devices of a domain
};

}  // namespace moeplan
