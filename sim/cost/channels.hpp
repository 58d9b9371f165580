#pragma once
/// How many multiprocessors communication kernels hold while they run. NCCL gives each of its channels a block, and a block stays on one multiprocessor.
///
/// Its channels follow from the topology: a ring has some for each NVLink, up to what a generation of devices has at most, two between devices that only PCIe
/// joins, some for each NIC of a node where it leaves it. Sends have the next power of two; to one rank over a network 2. The numbers and where they come from:
/// configs/nccl/channels.json, which is read when the program is built. Other vendors' libraries: not known, none.

#include <map>
#include <string>

#include "core/fields.hpp"
#include "core/quantity.hpp"
#include "core/spec/cluster.hpp"

namespace moeplan {

struct ChannelLimits {
  double most = 0, most_sends = 0;
  bool operator==(const ChannelLimits&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("most", &ChannelLimits::most, "of a ring").required().between(1, 64), field("most_sends", &ChannelLimits::most_sends).required().between(1, 64));
  }
};

struct ChannelRules {
  std::string source;
  BytesPerSecond nvlink{};
  double per_nvlink = 0, per_nic = 0, without_nvlink = 0;
  double neighbour_over_network = 0;   ///< of sends to one rank over a network
  double token_once = 0;               ///< of an expert exchange that sends a token once: its own kernels
  std::map<std::string, ChannelLimits> generations;
  bool operator==(const ChannelRules&) const = default;
  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("source", &ChannelRules::source).required(), field("nvlink", &ChannelRules::nvlink, "one link, one direction").required().above(0).at_most(1e12),
                           field("per_nvlink", &ChannelRules::per_nvlink).required().between(1, 64), field("per_nic", &ChannelRules::per_nic).required().between(1, 64),
                           field("without_nvlink", &ChannelRules::without_nvlink).required().between(1, 64),
                           field("neighbour_over_network", &ChannelRules::neighbour_over_network).required().between(1, 64),
                           field("token_once", &ChannelRules::token_once).required().between(1, 1024), field("generations", &ChannelRules::generations).required());
  }
};

/// Those of configs/nccl/channels.json.
[[nodiscard]] const ChannelRules& channel_rules();

struct Channels {
  double collectives = 0, sends = 0;
};

/// Of groups whose outermost tier is `tier`.
[[nodiscard]] Channels nccl_channels(const ClusterSpec& cluster, std::size_t tier);

}  // namespace moeplan
