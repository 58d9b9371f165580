#include "planner/exchange_reach.hpp"

#include "planner/exchange_options.hpp"
#include "sim/cost/collectives.hpp"
#include "sim/cost/groups.hpp"

namespace moeplan {

std::optional<ExchangeReach> exchange_reach(const Problem& problem, const Plan& plan) {
  const std::int64_t experts = routed_experts(problem.model);
  if (plan.parallelism.ep == 1 || experts == 0) return std::nullopt;
  ExchangeReach out;
  for (const LayerSpec& layer : problem.model.layers)
    for (const Sublayer& s : layer.sublayers)
      if (const auto* moe = std::get_if<MoeFfn>(&s.mixer)) out.top_k = static_cast<double>(moe->top_k);
  const auto k = static_cast<std::int64_t>(out.top_k);
  constexpr std::int64_t unit = 1 << 20;   // bytes of a copy
  const CommCall call{.collective = Collective::dispatch, .group = Group::expert, .payload = {k * unit}, .rows = k, .tokens = 1, .experts = experts, .direct = plan.experts.route == DispatchRoute::direct};
  const GroupShape group = group_shape(Group::expert, plan.parallelism);
  const auto places = [&](const ExpertExchange& x) { return expert_places(problem.model, x, plan.parallelism, problem.cluster); };
  const Links links(problem.cluster, problem.runtime, places(plan.experts));
  const auto members = links.members(group);
  std::size_t widest = 0;
  for (std::size_t t = 0; t < links.tiers(); ++t)
    if (members[t] > (t == 0 ? 1 : members[t - 1])) widest = t;
  out.tier = problem.cluster.tiers[widest].name;
  out.domains = static_cast<double>(group.size) / (widest == 0 ? 1 : members[widest - 1]);
  out.distinct = distinct_domains(static_cast<double>(experts), out.top_k, out.domains, places(plan.experts));
  out.once = problem.runtime.deduplicated_dispatch;
  out.direct = call.direct;
  const auto copies = [&](const Links& l) { return l.bytes(call, group)[widest] / static_cast<double>(unit); };
  ExpertExchange x = plan.experts;
  out.copies = copies(links);
  x.placement = ExpertPlacement::balanced;
  out.copies_by_load = copies(links.placed(places(x)));
  x.placement = ExpertPlacement::contiguous, x.replicas = 0;
  out.copies_in_order = copies(links.placed(places(x)));
  return out;
}

}  // namespace moeplan
