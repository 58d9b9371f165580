#include <gtest/gtest.h>

#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <cmath>
#include <map>

#include "sim/engine/network.hpp"

namespace moeplan {
namespace {

constexpr double kGb = 1e9;

LinkTier tier(LinkKind kind, std::int64_t span, double gigabytes) {
  LinkTier t;
  t.kind = kind;
  t.span = span;
  t.bandwidth = {gigabytes * kGb};
  t.efficiency = t.all_to_all_efficiency = 1;
  return t;
}

/// 4 nodes of 2 devices: NVLink 400 GB/s in a node, a NIC of 50 GB/s, pods of 2 nodes joined by a fabric of 25 GB/s per device.
ClusterSpec cluster() {
  ClusterSpec c;
  c.nodes = 4;
  c.devices_per_node = 2;
  c.tiers = {tier(LinkKind::scale_up, 2, 400), tier(LinkKind::network, 4, 50), tier(LinkKind::network, 0, 25)};
  return c;
}
const std::vector<std::int64_t> kAll{0, 1, 2, 3, 4, 5, 6, 7};

TEST(Network, DevicesOfANodeMeetInTheScaleUpDomain) {
  FairShare links;
  const Network n(cluster(), kAll, links);
  const auto route = n.route(0, 1);
  ASSERT_EQ(route.size(), 2u);   // up to the switch, down to the device
  for (const auto l : route) EXPECT_DOUBLE_EQ(links.capacity(l).value, 400 * kGb);
}

TEST(Network, NodesOfAPodMeetOverTheirNics) {
  FairShare links;
  const Network n(cluster(), kAll, links);
  const auto route = n.route(0, 2);
  ASSERT_EQ(route.size(), 2u);
  for (const auto l : route) EXPECT_DOUBLE_EQ(links.capacity(l).value, 50 * kGb);
}

// Against Dijkstra's search of the graph, with lengths that grow faster than hops from tier to tier.
TEST(Network, ARouteIsTheShortestThroughTheInnermostTier) {
  FairShare links;
  const Network n(cluster(), kAll, links);
  const NetworkGraph& g = n.graph();
  for (std::size_t from = 0; from < kAll.size(); ++from) {
    std::vector<NetworkGraph::vertex_descriptor> before(num_vertices(g));
    std::map<NetworkGraph::edge_descriptor, double> lengths;
    for (auto [e, end] = edges(g); e != end; ++e) lengths[*e] = std::pow(16.0, g[*e].tier);
    boost::dijkstra_shortest_paths(g, from, boost::predecessor_map(before.data()).weight_map(boost::make_assoc_property_map(lengths)));
    for (std::size_t to = 0; to < kAll.size(); ++to) {
      std::vector<std::int32_t> expected;
      for (auto v = to; v != from; v = before[v]) expected.insert(expected.begin(), g[edge(before[v], v, g).first].link);
      EXPECT_EQ(n.route(from, to), expected) << from << " to " << to;
    }
  }
}

// A pod's uplink carries 25 GB/s for each of its 4 devices.
TEST(Network, PodsMeetOverTheOversubscribedFabric) {
  FairShare links;
  const Network n(cluster(), kAll, links);
  const auto route = n.route(0, 4);
  ASSERT_EQ(route.size(), 4u);   // NIC, uplink, downlink, NIC
  EXPECT_DOUBLE_EQ(links.capacity(route[0]).value, 50 * kGb);
  EXPECT_DOUBLE_EQ(links.capacity(route[1]).value, 100 * kGb);
  EXPECT_DOUBLE_EQ(links.capacity(route[2]).value, 100 * kGb);
  EXPECT_DOUBLE_EQ(links.capacity(route[3]).value, 50 * kGb);
}

// Four devices of a pod send 50 GB/s each to the other pod: the uplink of 100 gives each 25, half their NIC.
TEST(Network, TheFabricSlowsWhatTheNicsCouldSend) {
  FairShare links;
  const Network n(cluster(), kAll, links);
  std::vector<std::int32_t> flows;
  for (std::size_t d = 0; d < 4; ++d) flows.push_back(links.start(n.message(d, d + 4, 50 * kGb, 1.0)));
  for (const auto f : flows) EXPECT_DOUBLE_EQ(links.speed(f), 0.5);
}

// Played alone, a device has its share of the uplink, 25 GB/s: it is slowed as if its three equals were sending too.
TEST(Network, AFoldedDeviceHasItsShareOfTheUplink) {
  FairShare links;
  const std::vector<std::int64_t> one_per_pod{0, 4};
  const Network n(cluster(), one_per_pod, links);
  const auto route = n.route(0, 1);
  ASSERT_EQ(route.size(), 4u);
  EXPECT_DOUBLE_EQ(links.capacity(route[1]).value, 25 * kGb);
}

// 3 GB over NVLink and 1 GB over the NIC in 0.1 s: 30 and 10 GB/s, each on the way out and on the way in.
TEST(Network, ACollectiveLoadsEachTierByItsBytes) {
  FairShare links;
  const Network n(cluster(), kAll, links);
  const auto uses = n.collective(0, TierBytes{3 * kGb, 1 * kGb, 0}, 0.1);
  ASSERT_EQ(uses.size(), 4u);
  EXPECT_DOUBLE_EQ(uses[0].bytes_per_second, 30 * kGb);
  EXPECT_DOUBLE_EQ(uses[2].bytes_per_second, 10 * kGb);
  EXPECT_DOUBLE_EQ(links.capacity(uses[0].link).value, 400 * kGb);
  EXPECT_DOUBLE_EQ(links.capacity(uses[2].link).value, 50 * kGb);
}

// What goes to other pods also passes the NIC: 1 + 2 GB on it, 2 GB on the uplink.
TEST(Network, TrafficToOtherPodsPassesTheNicToo) {
  FairShare links;
  const Network n(cluster(), kAll, links);
  double nic = 0, uplink = 0;
  for (const auto& u : n.collective(0, TierBytes{0, 1 * kGb, 2 * kGb}, 1.0)) {
    if (links.capacity(u.link).value == 50 * kGb) nic = u.bytes_per_second;
    if (links.capacity(u.link).value == 100 * kGb) uplink = u.bytes_per_second;
  }
  EXPECT_DOUBLE_EQ(nic, 3 * kGb);
  EXPECT_DOUBLE_EQ(uplink, 2 * kGb);
}

}  // namespace
}  // namespace moeplan
