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
/// most 32. Where the ranks lie in several domains every rank has the 2 channels of the narrowest way (NCCL's default; by its source, not measured).
constexpr std::int64_t kRing = 24, kPeer = 32, kNetworkPeer = 2;

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
    const bool within = (sets[i].size - 1) * sets[i].stride < domain;
    out += runtime.communicator + kChannel * (kRing + (within ? kPeer : kNetworkPeer) * sets[i].peers);
  }
  return out;
}

}  // namespace moeplan
