#include "sim/load/placed.hpp"

#include <algorithm>

namespace moeplan {

Kept nodes_kept(const ExpertExchange& x, std::int64_t experts, std::int64_t groups, const Parallelism& p, const ClusterSpec& cluster) {
  // An expert group spans this many nodes; a hierarchical placement keeps each group of experts on one of them.
  const std::int64_t nodes = std::max<std::int64_t>(1, static_cast<std::int64_t>(p.ep) * p.etp / cluster.devices_per_node), kept = groups > 1 ? groups : nodes;
  const bool keeps = x.placement == ExpertPlacement::hierarchical && experts % kept == 0 && p.ep % nodes == 0 && kept % nodes == 0;
  return keeps ? Kept{kept, nodes} : Kept{};
}

Placement placed(const ExpertExchange& x, const Shares& planned, std::int64_t groups, const Parallelism& p,
                 const ClusterSpec& cluster) {
  const auto experts = static_cast<std::int64_t>(planned.size());
  if (x.placement == ExpertPlacement::contiguous) return contiguous(experts, p.ep);
  const Kept kept = nodes_kept(x, experts, groups, p, cluster);
  return balanced(planned, p.ep, experts + x.replicas, kept.groups, kept.nodes);
}

}  // namespace moeplan
