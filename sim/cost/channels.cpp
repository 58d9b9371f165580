#include "sim/cost/channels.hpp"

#include <algorithm>
#include <cmath>

#include "core/json.hpp"
#include "core/read.hpp"

namespace moeplan {
namespace {

constexpr const char* kFile = "configs/nccl/channels.json";
constexpr const char* kText =
#include "sim/cost/channel_rules.inc"   // the file as a string, made by CMakeLists.txt
    ;

}  // namespace

const ChannelRules& channel_rules() {
  static const ChannelRules rules = read_document<ChannelRules>(parse_json(kText, kFile), kFile);
  return rules;
}

Channels nccl_channels(const ClusterSpec& cluster, std::size_t tier) {
  const ChannelRules& rules = channel_rules();
  const auto limits = rules.generations.find(cluster.device.generation);
  if (limits == rules.generations.end()) return {};
  const LinkTier& inner = cluster.tiers.front();
  double n = rules.without_nvlink;
  if (inner.kind == LinkKind::scale_up) {
    n = std::min(limits->second.most, rules.per_nvlink * std::floor(inner.bandwidth.value / rules.nvlink.value));
    if (cluster.tiers[tier].kind == LinkKind::network) n = std::min(n, rules.per_nic * static_cast<double>(cluster.devices_per_node));
  }
  n = std::max(n, rules.without_nvlink);
  return {n, std::min(std::exp2(std::ceil(std::log2(n))), limits->second.most_sends)};
}

}  // namespace moeplan
