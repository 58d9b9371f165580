#include "sim/cost/contention.hpp"

#include <algorithm>

#include "sim/cost/groups.hpp"

namespace moeplan {

Transfer& Transfer::operator+=(const Transfer& other) {
  seconds += other.seconds;
  for (std::size_t t = 0; t < kMaxTiers; ++t) bytes[t] += other.bytes[t];
  return *this;
}

Ports::Ports(const ClusterSpec& cluster) : tiers_(std::min(cluster.tiers.size(), kMaxTiers)) {
  for (std::size_t t = 0; t < tiers_; ++t) {
    const LinkTier& tier = cluster.tiers[t];
    capacity_[t] = tier.bandwidth.value * std::max(tier.efficiency, tier.all_to_all_efficiency);
    if (tier.kind == LinkKind::network && network_ == kMaxTiers) network_ = t;
  }
}

std::array<double, kMaxTiers> Ports::rates(const Transfer& t) const {
  std::array<double, kMaxTiers> out{};
  if (!(t.seconds > 0)) return out;
  double outer = 0;
  for (std::size_t i = tiers_; i-- > 0;) {
    const bool network = i >= network_;
    if (network) outer += t.bytes[i];
    out[i] = std::min((network ? outer : t.bytes[i]) / t.seconds, capacity_[i]);
  }
  return out;
}

Ports::Speeds Ports::beside(const Transfer& first, const Transfer& second) const {
  const std::array a = rates(first), b = rates(second);
  const double full_a = *std::max_element(a.begin(), a.end()), full_b = *std::max_element(b.begin(), b.end());
  // Both rise to the level at which the first link that both load is full.
  double level = std::max(full_a, full_b);
  for (std::size_t t = 0; t < tiers_; ++t) {
    if (a[t] <= 0 || b[t] <= 0 || a[t] + b[t] <= capacity_[t] * (1 + 1e-9)) continue;
    const bool a_first = full_a <= full_b;   // which has its full speed before the other
    const double low = a_first ? full_a : full_b, high = a_first ? full_b : full_a, of_low = a_first ? a[t] : b[t], of_high = a_first ? b[t] : a[t];
    const double together = of_low + of_high * low / high;
    level = std::min(level, together >= capacity_[t] ? capacity_[t] / (of_low / low + of_high / high) : high * (capacity_[t] - of_low) / of_high);
  }
  return {full_a > 0 ? std::min(1.0, level / full_a) : 1, full_b > 0 ? std::min(1.0, level / full_b) : 1};
}

Crossing crossing(const Ports& ports, std::span<const Transfer> pass, const Transfer& lane) {
  Crossing out;
  if (lane.seconds <= 0) return out;
  for (const Transfer& e : pass) {
    const Ports::Speeds s = e.computes ? Ports::Speeds{1 - lane.lent, 1} : ports.beside(e, lane);
    out.stretch += lane.seconds * e.seconds * (1 / s.first - 1);
    out.drag += lane.seconds * e.seconds * (1 - s.second / s.first);
  }
  return out;
}

double delay(double pass, double lane, const Crossing& x) {
  if (lane <= 0 || pass <= 0 || !x.any()) return 0;
  const double alone = std::max(pass, lane), left = pass - x.drag / lane;
  return std::max(0.0, (lane <= left ? pass + x.stretch / left : lane + (x.stretch + x.drag) / lane) - alone);
}

SlotCrossings& SlotCrossings::operator+=(const SlotCrossings& other) {
  weights += other.weights;
  forward += other.forward, backward += other.backward, reduction += other.reduction;
  return *this;
}

SlotCrossings slot_crossings(const Ports& ports, std::span<const Transfer> forward, std::span<const Transfer> backward, const Transfer& gather, std::span<const Transfer> reductions) {
  SlotCrossings out{{.gather = gather.seconds, .gather_lends = gather.seconds * gather.lent}, crossing(ports, forward, gather), crossing(ports, backward, gather), {}};
  for (const Transfer& r : reductions) {
    out.weights.reduce += r.seconds;
    out.weights.reduce_lends += r.seconds * r.lent;
    out.reduction += crossing(ports, backward, r);
  }
  return out;
}

SlotCrossings slot_crossings(const Runtime& runtime, const Ports& ports, const Links& links, const Parallelism& par, const SlotSharding& cut, std::span<const Transfer> forward,
                             std::span<const Transfer> backward) {
  const auto moved = [&](Collective c, Group g, Bytes payload) { return transfer({.collective = c, .group = g, .payload = payload}, links, par); };
  const auto rest = [](Bytes b, int degree) { return Bytes{b.value / std::max(1, degree)}; };
  const auto half = [&](Group shard, Group replicate, Bytes gathered, Bytes reduced, int degree, Bytes tensor) {
    std::array<Transfer, 3> reductions{};
    if (!runtime.reduce_once) reductions = {moved(Collective::all_reduce, Group::tensor, tensor), moved(Collective::reduce_scatter, shard, reduced), moved(Collective::all_reduce, replicate, rest(reduced, degree))};
    return slot_crossings(ports, forward, backward, runtime.distributed_optimizer ? Transfer{} : moved(Collective::all_gather, shard, gathered), reductions);
  };
  SlotCrossings out = half(Group::data_shard, Group::data_replicate, cut.dense_gather, cut.dense_reduce, par.dp_shard * par.cp, cut.tensor_reduce);
  out += half(Group::expert_data_shard, Group::expert_data_replicate, cut.expert_gather, cut.expert_reduce, par.expert_shard, {});
  return out;
}

SlotDelays slot_delays(double forward, double backward, const SlotCrossings& x) {
  Crossing both = x.backward;
  both += x.reduction;
  return {delay(forward, x.weights.gather, x.forward), delay(backward, x.weights.gather + x.weights.reduce, both), delay(backward, x.weights.reduce, x.reduction), x.weights};
}

double paired_delay(double both, double lane, double lends) {
  if (lane <= 0 || lends <= 0) return 0;
  const double stretch = lane * both * (lends / (lane - lends));
  return delay(both, lane, {stretch, -stretch});
}

LentTo lent_to(const Links& links, const Parallelism& parallelism) {
  return [&links, parallelism](const CommCall& call) { return links.lent(call, group_shape(call.group, parallelism)); };
}

SlotCollectives& SlotCollectives::operator+=(const SlotCollectives& other) {
  gather += other.gather, reduce += other.reduce;
  gather_lends += other.gather_lends, reduce_lends += other.reduce_lends;
  return *this;
}

SlotCollectives slot_collectives(const Links& links, const Parallelism& par, const SlotSharding& cut) {
  SlotCollectives out;
  const auto add = [&](Collective c, Group g, Bytes payload) {
    const Transfer t = transfer({.collective = c, .group = g, .payload = payload}, links, par);
    (c == Collective::all_gather ? out.gather : out.reduce) += t.seconds;
    (c == Collective::all_gather ? out.gather_lends : out.reduce_lends) += t.seconds * t.lent;
  };
  const auto rest = [](Bytes b, int degree) { return Bytes{b.value / std::max(1, degree)}; };
  add(Collective::all_gather, Group::data_shard, cut.dense_gather);
  add(Collective::all_gather, Group::expert_data_shard, cut.expert_gather);
  add(Collective::all_reduce, Group::tensor, cut.tensor_reduce);
  add(Collective::reduce_scatter, Group::data_shard, cut.dense_reduce);
  add(Collective::all_reduce, Group::data_replicate, rest(cut.dense_reduce, par.dp_shard * par.cp));
  add(Collective::reduce_scatter, Group::expert_data_shard, cut.expert_reduce);
  add(Collective::all_reduce, Group::expert_data_replicate, rest(cut.expert_reduce, par.expert_shard));
  return out;
}

Transfer transfer(const CommCall& call, const Links& links, const Parallelism& parallelism) {
  const GroupShape where = group_shape(call.group, parallelism);
  if (where.size <= 1 || call.payload.value <= 0) return {};
  return {links.price(call, where, 1.0).median.value, links.bytes(call, where), links.lent(call, where)};
}

std::vector<Transfer> transfers(std::span<const BlockNode> nodes, std::span<const double> seconds, const PassTime& took, const Links& links, const Parallelism& parallelism) {
  std::vector<Transfer> out;
  std::vector<const CommCall*> known;
  double sum = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const CommCall* call = std::get_if<CommCall>(&nodes[i].call);
    if (!call || is_host_copy(call->collective) || seconds[i] <= 0) continue;
    const Transfer each{seconds[i], links.bytes(*call, group_shape(call->group, parallelism))};
    sum += seconds[i];
    const auto same = static_cast<std::size_t>(std::find_if(known.begin(), known.end(), [&](const CommCall* c) { return c->collective == call->collective && c->group == call->group && c->payload == call->payload; }) - known.begin());
    if (same < known.size()) { out[same] += each; continue; }
    known.push_back(call);
    out.push_back(each);
  }
  const double exposed = sum > 0 ? std::min(1.0, took.exposed.value / sum) : 0;
  for (Transfer& t : out) {
    t.seconds *= exposed;
    for (double& b : t.bytes) b *= exposed;
  }
  if (const double computed = (took.compute + took.recompute).value; computed > 0) out.push_back({.seconds = computed, .computes = true});
  std::erase_if(out, [](const Transfer& t) { return t.seconds <= 0; });
  return out;
}

}  // namespace moeplan
