#include "planner/exchange_options.hpp"

#include <algorithm>

namespace moeplan {
namespace {

ExpertExchange pinned_exchange(const Pins& pins) {
  ExpertExchange x;
  x.dispatch = pins.dispatch.value_or(x.dispatch);
  x.route = pins.route.value_or(x.route);
  x.chunks = pins.expert_chunks.value_or(x.chunks);
  x.capacity_factor = pins.capacity_factor;
  x.overflow = pins.overflow.value_or(x.overflow);
  x.pad = pins.pad.value_or(x.pad);
  x.replicas = pins.expert_replicas.value_or(x.replicas);
  x.placement = pins.placement.value_or(x.replicas > 0 ? ExpertPlacement::balanced : x.placement);
  return x;
}

/// Whether a hierarchical placement is another one than a balanced one: the expert group spans nodes, which hold whole groups of experts.
bool nodes_hold_groups(const Problem& problem, const Parallelism& p) {
  std::int64_t experts = 0, groups = 1;
  for (const LayerSpec& l : problem.model.layers)
    for (const Sublayer& s : l.sublayers)
      if (const MoeFfn* moe = std::get_if<MoeFfn>(&s.mixer)) experts = moe->experts, groups = std::max<std::int64_t>(1, moe->groups);
  const std::int64_t nodes = static_cast<std::int64_t>(p.ep) * p.etp / problem.cluster.devices_per_node;
  return nodes > 1 && p.ep % nodes == 0 && experts % (groups > 1 ? groups : nodes) == 0 && (groups > 1 ? groups : nodes) % nodes == 0;
}

}  // namespace

std::int64_t routed_experts(const ModelSpec& model) {
  std::int64_t experts = 0;
  for (const LayerSpec& l : model.layers)
    for (const Sublayer& s : l.sublayers)
      if (const MoeFfn* moe = std::get_if<MoeFfn>(&s.mixer)) experts = std::max(experts, moe->experts);
  return experts;
}

std::int64_t scale_up_domain(const ClusterSpec& cluster) {
  const LinkTier& inner = cluster.tiers.front();
  return inner.span == 0 ? cluster.devices() : std::min(inner.span, cluster.devices());
}

std::vector<ExpertExchange> exchange_options(const Problem& problem, const SearchOptions& options, const Parallelism& p, Offload offload) {
  const Pins& pins = options.pins;
  std::vector<ExpertExchange> out{pinned_exchange(pins)};
  const std::int64_t experts = routed_experts(problem.model);
  if (options.search_dispatch && !pins.dispatch && p.ep > 1) {
    out.push_back(out.front());
    out.back().dispatch = DType::fp8;
  }
  const auto vary = [&](const auto& change) {
    for (std::size_t i = 0, n = out.size(); i < n; ++i) {
      ExpertExchange x = out[i];
      change(x);
      out.push_back(x);
    }
  };
  // A capacity caps what an expert takes whatever its rank; which assignments are dropped costs the same.
  if (experts > 0 && options.search_capacity && !pins.capacity_factor) {
    const std::size_t n = out.size();
    for (const double factor : {1.0, 1.25, 1.5, 2.0})
      for (std::size_t i = 0; i < n; ++i) {
        ExpertExchange x = out[i];
        x.capacity_factor = factor;
        out.push_back(x);
      }
  }
  if (options.search_overflow && !pins.overflow)
    for (std::size_t i = 0, n = out.size(); i < n; ++i)
      if (out[i].capacity_factor) {
        out.push_back(out[i]);
        out.back().overflow = Overflow::reroute;
      }
  if (!options.wide || p.ep == 1 || experts == 0) return out;
  // Where every copy of a token travels there is no other route.
  const bool spans = problem.runtime.deduplicated_dispatch && static_cast<std::int64_t>(p.ep) * p.etp > scale_up_domain(problem.cluster);
  if (!pins.route && spans) vary([](ExpertExchange& x) { x.route = DispatchRoute::direct; });
  if (!pins.placement && !pins.expert_replicas) {
    const std::size_t n = out.size();
    vary([](ExpertExchange& x) { x.placement = ExpertPlacement::balanced; });
    if (nodes_hold_groups(problem, p)) {
      for (std::size_t i = 0; i < n; ++i) {
        out.push_back(out[i]);
        out.back().placement = ExpertPlacement::hierarchical;
      }
    }
    if (problem.workload.experts.training == Training::frozen && experts / p.ep > 1) {
      for (std::size_t i = 0; i < n; ++i) {
        ExpertExchange x = out[i];
        x.placement = ExpertPlacement::balanced;
        x.replicas = p.ep;
        out.push_back(x);
      }
    }
  }
  if (!pins.expert_chunks && !offloads_activations(offload)) {
    const std::size_t n = out.size();
    for (const std::int64_t chunks : {2, 4})
      for (std::size_t i = 0; i < n; ++i) {
        ExpertExchange x = out[i];
        x.chunks = chunks;
        out.push_back(x);
      }
  }
  return out;
}

}  // namespace moeplan
