#include "sim/engine/costs.hpp"

namespace moeplan {

Costs model_costs(const Prices& prices, const Links& links, const Parallelism& parallelism, double skew) {
  Costs out;
  out.price = [&prices, &links, parallelism, skew](const BlockNode& node) {
    if (const OpCall* op = std::get_if<OpCall>(&node.call)) return prices.price(*op);
    if (const CommCall* comm = std::get_if<CommCall>(&node.call)) return links.price(*comm, group_shape(comm->group, parallelism), skew);
    return links.host_wait(group_shape(Group::expert, parallelism));
  };
  out.shape = [parallelism](Group group) { return group_shape(group, parallelism); };
  out.bytes = [&links, parallelism](const CommCall& call) { return links.bytes(call, group_shape(call.group, parallelism)); };
  return out;
}

}  // namespace moeplan
