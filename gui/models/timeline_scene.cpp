#include "gui/models/timeline_scene.hpp"

#include <algorithm>

#include "gui/models/memory_area.hpp"
#include "planner/load_factors.hpp"

namespace moeplan::gui {

std::vector<double> busiestExpertTokens(const Problem& problem, const Plan& plan) {
  const Parallelism& p = plan.parallelism;
  std::vector<double> out(problem.model.layers.size(), 0);
  std::int64_t layers = 0;
  const MoeFfn* moe = nullptr;
  std::vector<const MoeFfn*> of(out.size(), nullptr);
  for (std::size_t l = 0; l < out.size(); ++l)
    for (const Sublayer& s : problem.model.layers[l].sublayers)
      if (const auto* m = std::get_if<MoeFfn>(&s.mixer)) moe = of[l] = m, ++layers;
  if (!moe) return out;
  const std::vector<Shares> shares = expert_shares(problem.load, layers, moe->experts);
  const double sequences = static_cast<double>(plan.micro_batch) * p.ep * p.etp / (static_cast<double>(p.tp) * p.cp);
  const double copies = sequences * static_cast<double>(problem.workload.sequence_length) * static_cast<double>(moe->top_k);
  std::size_t at = 0;
  for (std::size_t l = 0; l < out.size(); ++l) {
    if (!of[l]) continue;
    const Shares& planned = shares[at++];
    Shares arrives = planned;
    if (plan.experts.capacity_factor) arrives = capped(planned, *plan.experts.capacity_factor, plan.experts.overflow == Overflow::reroute, plan.experts.pad);
    std::vector<std::int64_t> slots(planned.size(), 1);
    if (plan.experts.replicas > 0) {
      std::fill(slots.begin(), slots.end(), 0);
      for (const std::int64_t e : placed(plan.experts, planned, std::max<std::int64_t>(1, of[l]->groups), p, problem.cluster).expert) ++slots[static_cast<std::size_t>(e)];
    }
    for (std::size_t e = 0; e < arrives.size(); ++e) out[l] = std::max(out[l], copies * arrives[e] / static_cast<double>(std::max<std::int64_t>(1, slots[e])));
  }
  return out;
}

Counter layerCounter(const StepTimeline& t, std::int32_t rank, const std::vector<double>& values) {
  Counter out;
  Picoseconds until = 0;
  const auto set = [&](Picoseconds at, double v) {
    if (out.values.empty() ? v == 0 : out.values.back() == v) return;
    out.seconds.push_back(to_seconds(at).value);
    out.values.push_back(v);
  };
  for (const TimelineEvent& e : t.events) {
    if (e.rank != rank || e.lane != 0) continue;
    if (e.start > until) set(until, 0);
    set(e.start, e.layer >= 0 && static_cast<std::size_t>(e.layer) < values.size() ? values[static_cast<std::size_t>(e.layer)] : 0);
    until = std::max(until, e.end());
  }
  set(until, 0);
  return out;
}

TimelineScene sceneOf(std::shared_ptr<const Play> play, std::shared_ptr<const StepTimeline> measured, const Ticket& ticket) {
  TimelineScene out;
  out.play = std::move(play);
  out.measured = std::move(measured);
  for (const StepTimeline* t : std::initializer_list<const StepTimeline*>{out.play ? &out.play->timeline : nullptr, out.measured.get()})
    if (t)
      for (const TimelineEvent& e : t->events) out.present.insert(e.kind);
  ticket.stopIfCancelled();
  if (out.play) {
    const Play& p = *out.play;
    out.store = storeOf(p.timeline, false);
    ticket.stopIfCancelled();
    std::size_t worst = 0;
    for (std::size_t r = 1; r < p.memory.size(); ++r)
      if (p.memory[r].peak.peak() > p.memory[worst].peak.peak()) worst = r;
    if (!p.memory.empty()) {
      const MemoryArea area = areaOf(p.memory[worst]);
      Counter c{QObject::tr("memory of rank %1").arg(p.memory[worst].rank), QStringLiteral("GB"), area.seconds, {}};
      for (const double v : area.total) c.values.push_back(v / 1e9);
      out.counters.push_back(std::move(c));
      const std::vector<double> tokens = busiestExpertTokens(*p.problem, p.plan);
      if (*std::max_element(tokens.begin(), tokens.end()) > 0) {
        Counter t = layerCounter(p.timeline, static_cast<std::int32_t>(worst), tokens);
        t.name = QObject::tr("tokens of the busiest expert, rank %1").arg(p.memory[worst].rank);
        if (!t.values.empty()) out.counters.push_back(std::move(t));
      }
    }
  }
  ticket.stopIfCancelled();
  if (out.measured) {
    if (out.play) out.pairs = counterparts(out.play->timeline, *out.measured);
    ticket.stopIfCancelled();
    TraceStore m = storeOf(*out.measured, true);
    out.store = out.play ? beside(std::move(out.store), std::move(m)) : std::move(m);
  }
  if (out.play) {
    const Parallelism& p = out.play->plan.parallelism;
    nameGroups(out.store, out.play->problem->cluster.devices_per_node, p.stage_ranks(), static_cast<std::int64_t>(p.ep) * p.etp);
  }
  return out;
}

}  // namespace moeplan::gui
