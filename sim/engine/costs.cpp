#include "sim/engine/costs.hpp"

#include <algorithm>

#include "sim/engine/interference.hpp"
#include "sim/program/call_scratch.hpp"

namespace moeplan {

Costs model_costs(const Prices& prices, const Links& links, const Parallelism& parallelism, double skew) {
  Costs out;
  out.price = [&prices, &links, parallelism, skew](const BlockNode& node) {
    if (const OpCall* op = std::get_if<OpCall>(&node.call)) return prices.price(*op);
    if (const CommCall* comm = std::get_if<CommCall>(&node.call)) return links.price(*comm, group_shape(comm->group, parallelism), skew);
    return links.host_wait(group_shape(Group::expert, parallelism));
  };
  out.beside = [&prices](const Block& block) -> std::function<Seconds(const BlockNode&)> {
    return [&prices, copied = copied_bytes(block, prices.runtime())](const BlockNode& node) { return prices.copies(copied(node)); };
  };
  out.shape = [parallelism](Group group) { return group_shape(group, parallelism); };
  out.taken = [&links, parallelism](const CommCall& call, Seconds) { return Costs::Taken{.multiprocessors = links.lent(call, group_shape(call.group, parallelism))}; };
  out.bytes = [&links, parallelism](const CommCall& call) { return links.bytes(call, group_shape(call.group, parallelism)); };
  return out;
}

Costs interfering_costs(const Prices& prices, const Links& links, const Parallelism& parallelism, const DeviceSpec& device, double skew) {
  Costs out = model_costs(prices, links, parallelism, skew);
  out.price = [plain = std::move(out.price)](const BlockNode& node) {
    const CommCall* comm = std::get_if<CommCall>(&node.call);
    if (!comm || !comm->beside_compute) return plain(node);
    BlockNode alone;
    CommCall call = *comm;
    call.beside_compute = false;
    alone.call = call;
    alone.lane = node.lane;
    return plain(alone);
  };
  const double bandwidth = device.memory_bandwidth.value * device.achieved_bandwidth;
  out.taken = [bandwidth, shape = out.shape, plain = std::move(out.taken)](const CommCall& call, Seconds duration) {
    Costs::Taken t = plain(call, duration);
    if (call.collective == Collective::dispatch || call.collective == Collective::combine) t.beside_compute = kOverlappedExchangeRate;
    const double bytes = memory_traffic(call.collective, static_cast<double>(shape(call.group).size)) * static_cast<double>(call.payload.value);
    if (duration.value > 0) t.memory = std::min(0.95, bytes / duration.value / bandwidth);
    return t;
  };
  out.memory_bound = [bandwidth](const OpCall& op, Seconds duration) {
    if (!(duration.value > 0)) return 0.0;
    const Wants wants = op.pass == Pass::backward ? op.wants : Wants{};
    return std::min(1.0, static_cast<double>(bytes_moved(op.op, op.pass, wants).value) / bandwidth / duration.value);
  };
  return out;
}

}  // namespace moeplan
