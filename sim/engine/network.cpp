#include "sim/engine/network.hpp"

#include <algorithm>
#include <map>

namespace moeplan {

std::int32_t Network::join(Vertex a, Vertex b, std::int32_t tier, double capacity, FairShare& links) {
  const std::int32_t link = links.add_link({capacity});
  boost::add_edge(a, b, NetworkEdge{link, tier}, graph_);
  return link;
}

Network::Network(const ClusterSpec& cluster, std::span<const std::int64_t> devices, FairShare& links) {
  for (const std::int64_t d : devices) device_.push_back(boost::add_vertex(NetworkVertex{d, -1}, graph_));
  reach_.resize(devices.size());
  std::int32_t network = -1;                                    // last network tier built
  std::map<std::int64_t, Vertex> below;                         // its switches, by domain
  std::int64_t below_span = 1;
  for (std::size_t t = 0; t < std::min(cluster.tiers.size(), kMaxTiers); ++t) {
    const LinkTier& tier = cluster.tiers[t];
    const auto number = static_cast<std::int32_t>(t);
    const std::int64_t span = tier.span == 0 ? std::max<std::int64_t>(1, cluster.devices()) : tier.span;
    spans_.push_back(span);
    const double per_device = tier.bandwidth.value * std::max(tier.efficiency, tier.all_to_all_efficiency);
    std::map<std::int64_t, Vertex> switches;
    for (const std::int64_t d : devices)
      if (!switches.count(d / span)) switches[d / span] = boost::add_vertex(NetworkVertex{-1, number}, graph_);
    if (tier.kind != LinkKind::network || network < 0) {
      for (std::size_t i = 0; i < devices.size(); ++i) {
        const Vertex s = switches[devices[i] / span];
        const std::int32_t up = join(device_[i], s, number, per_device, links), down = join(s, device_[i], number, per_device, links);
        reach_[i][t] = {up, down};
      }
    } else {
      std::map<std::int64_t, std::int64_t> played;
      for (const std::int64_t d : devices) ++played[d / below_span];
      std::map<std::int64_t, std::pair<std::int32_t, std::int32_t>> uplinks;
      for (const auto& [domain, s] : below) {
        const Vertex above = switches[domain * below_span / span];
        const double capacity = per_device * static_cast<double>(played[domain]);
        const std::int32_t up = join(s, above, number, capacity, links);
        uplinks[domain] = {up, join(above, s, number, capacity, links)};
      }
      for (std::size_t i = 0; i < devices.size(); ++i) {
        reach_[i][t] = reach_[i][static_cast<std::size_t>(network)];
        const auto& [up, down] = uplinks[devices[i] / below_span];
        reach_[i][t].push_back(up);
        reach_[i][t].push_back(down);
      }
    }
    if (tier.kind == LinkKind::network) {
      network = number;
      below = std::move(switches);
      below_span = span;
    }
  }
}

std::vector<std::int32_t> Network::route(std::size_t from, std::size_t to) const {
  if (from == to) return {};
  const std::int64_t a = graph_[device_[from]].device, b = graph_[device_[to]].device;
  for (std::size_t t = 0; t < spans_.size(); ++t) {
    if (a / spans_[t] != b / spans_[t]) continue;
    // Ports and uplinks come in pairs, up and down, innermost first.
    std::vector<std::int32_t> links;
    for (std::size_t i = 0; i < reach_[from][t].size(); i += 2) links.push_back(reach_[from][t][i]);
    for (std::size_t i = reach_[to][t].size(); i > 0; i -= 2) links.push_back(reach_[to][t][i - 1]);
    return links;
  }
  return {};
}

std::vector<LinkUse> Network::collective(std::size_t device, const TierBytes& bytes, double duration) const {
  std::vector<LinkUse> uses;
  if (!(duration > 0)) return uses;
  for (std::size_t t = 0; t < spans_.size(); ++t) {
    if (bytes[t] <= 0) continue;
    for (const std::int32_t link : reach_[device][t]) {
      const auto known = std::find_if(uses.begin(), uses.end(), [&](const LinkUse& u) { return u.link == link; });
      if (known != uses.end()) known->bytes_per_second += bytes[t] / duration;
      else uses.push_back({link, bytes[t] / duration});
    }
  }
  return uses;
}

std::vector<LinkUse> Network::message(std::size_t from, std::size_t to, double bytes, double duration) const {
  std::vector<LinkUse> uses;
  if (!(duration > 0)) return uses;
  for (const std::int32_t link : route(from, to)) uses.push_back({link, bytes / duration});
  return uses;
}

}  // namespace moeplan
