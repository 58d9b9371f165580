#include "sim/cost/channels.hpp"

#include <algorithm>
#include <cmath>

namespace moeplan {
namespace {

constexpr double kMost = 24, kMostOnBlackwell = 16, kWithoutNvlink = 2, kPerLink = 2, kPerNic = 2;
/// One NVLink's bytes/s in one direction, third and fourth generation.
constexpr double kNvlink = 25e9;

}  // namespace

Channels nccl_channels(const ClusterSpec& cluster, std::size_t tier) {
  const std::string& generation = cluster.device.generation;
  const bool blackwell = generation == "blackwell";
  if (!blackwell && generation != "hopper" && generation != "ampere" && generation != "ada") return {};
  const LinkTier& inner = cluster.tiers.front();
  double n = kWithoutNvlink;
  if (inner.kind == LinkKind::scale_up) {
    n = std::min(blackwell ? kMostOnBlackwell : kMost, kPerLink * std::floor(inner.bandwidth.value / kNvlink));
    if (cluster.tiers[tier].kind == LinkKind::network) n = std::min(n, kPerNic * static_cast<double>(cluster.devices_per_node));
  }
  n = std::max(n, kWithoutNvlink);
  return {n, std::min(std::exp2(std::ceil(std::log2(n))), blackwell ? kMostOnBlackwell : 32.0)};
}

}  // namespace moeplan
