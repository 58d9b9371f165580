#include "sim/memory/communicators.hpp"

#include <algorithm>
#include <array>

#include "sim/cost/groups.hpp"

namespace moeplan {
namespace {

/// NCCL 2.28.3 by the driver's count, two H200 on NVLink, 2026-11-30. Its kernels and their stacks, once a process.
constexpr Bytes kLibrary{std::int64_t{438} << 20};
/// Buffers of a channel to one rank and from it: 10 and 2 MiB (LL, LL128 and Simple, in pieces of 2 MiB). Less only by NCCL_BUFFSIZE.
constexpr Bytes kChannel{std::int64_t{12} << 20};
/// Channels of a ring between devices with 18 NVLinks each (H100, H200, B200), and of sends to one rank of the same domain: twice its links, at
/// most 32.
constexpr std::int64_t kRing = 24, kPeer = 32;
/// Sends over a network go through a pool for each direction, whatever the number of ranks: 32 channels of 16 pieces of 128 KiB, on the device as
/// the NIC reads it there (sharedNetBuffersInit of NCCL 2.28; by its source, not measured). They have no buffers of their own.
constexpr Bytes kNetworkPool{2 * 32 * 16 * (std::int64_t{128} << 10)};

/// Channels between two ranks of one domain in a group of `ranks` over several: those of the narrowest way, which is the network's 2, and 1 where
/// the 32 channels would serve more than four ranks each (ncclTopoGetNchannels).
std::int64_t narrow_channels(std::int64_t ranks) { return 2 * ranks > 4 * 32 ? 1 : 2; }

/// Ranks of the group to which one of them sends by itself.
std::int64_t peers(Group group, std::int64_t size, ContextExchange exchange) {
  switch (group) {
    case Group::expert:
    case Group::expert_tensor: return size - 1;
    case Group::context: return exchange == ContextExchange::ring ? std::min<std::int64_t>(2, size - 1) : size - 1;
    case Group::pipeline: return std::min<std::int64_t>(2, size - 1);
    default: return 0;
  }
}

}  // namespace

Bytes communicator_memory(const Problem& problem, const Parallelism& p, ContextExchange exchange) {
  const Runtime& runtime = problem.runtime;
  const std::int64_t world = p.world();
  if (world <= 1) return {};
  if (!runtime.own_kernels || runtime.communicator.value == 0) {
    std::int64_t communicators = 1;
    for (const int degree : {p.pp, p.tp, p.cp, p.ep, p.etp, p.dp_replicate, p.dp_shard, p.expert_shard}) communicators += degree > 1 && degree < world;
    return runtime.communicator * communicators;
  }
  struct Set {
    std::int64_t size = 1, stride = 1, peers = 0;
  };
  std::array<Set, EnumNames<Group>::names.size() + 1> sets;
  std::size_t count = 0;
  const auto add = [&](Set set) {
    if (set.size <= 1) return;
    for (std::size_t i = 0; i < count; ++i)
      if (sets[i].size == set.size && sets[i].stride == set.stride) {
        sets[i].peers = std::max(sets[i].peers, set.peers);
        return;
      }
    sets[count++] = set;
  };
  for (const auto& [group, name] : EnumNames<Group>::names) {
    const GroupShape shape = group_shape(group, p);
    const std::int64_t size = group == Group::pipeline ? p.pp : shape.size;
    add({size, shape.stride, peers(group, size, exchange)});
  }
  add({p.stage_ranks(), 1, 0});
  const std::int64_t domain = problem.cluster.tiers.empty() || problem.cluster.tiers.front().span == 0 ? world : problem.cluster.tiers.front().span;
  Bytes out = kLibrary;
  if (p.pp > 1 && p.stage_ranks() == 1) out += runtime.communicator;   // a stage of one rank has one too, and no neighbours
  for (std::size_t i = 0; i < count; ++i) {
    const auto [size, stride, sent_to] = sets[i];
    const bool within = (size - 1) * stride < domain;
    const std::int64_t near = within ? sent_to : std::min(sent_to, std::max<std::int64_t>(1, domain / stride) - 1);
    out += runtime.communicator + kChannel * (kRing + (within ? kPeer : narrow_channels(size)) * near);
    if (near < sent_to) out += kNetworkPool;
  }
  return out;
}

}  // namespace moeplan
