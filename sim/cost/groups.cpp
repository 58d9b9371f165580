#include "sim/cost/groups.hpp"

namespace moeplan {

GroupShape group_shape(Group group, const Parallelism& p) {
  switch (group) {
    case Group::tensor: return {p.tp, 1};
    case Group::context: return {p.cp, p.tp};
    case Group::data_shard: return {p.dp_shard * p.cp, p.tp};
    case Group::data_replicate: return {p.dp_replicate, p.tp * p.cp * p.dp_shard};
    case Group::expert_tensor: return {p.etp, 1};
    case Group::expert: return {p.ep, p.etp};
    case Group::expert_data_shard: return {p.expert_shard, p.etp * p.ep};
    case Group::expert_data_replicate: return {p.expert_data() / p.expert_shard, p.etp * p.ep * p.expert_shard};
    case Group::pipeline: return {2, p.stage_ranks()};
    case Group::world: return {p.world(), 1};
  }
  return {1, 1};
}

}  // namespace moeplan
