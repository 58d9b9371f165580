#include "planner/simulation.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "planner/load_factors.hpp"
#include "planner/prices.hpp"
#include "sim/engine/costs.hpp"

namespace moeplan {

Simulation simulate(const Problem& problem, const Plan& plan, const SimulationOptions& options) {
  const Parallelism& par = plan.parallelism;
  LoadFactors factors(problem);
  factors.prepare(plan);
  const FactorBand band = factors.stage(plan, 0, static_cast<std::int64_t>(problem.model.layers.size()));
  const double load = (options.high_load ? band.p95 : band.p50).step;
  const Prices prices = prices_of(problem, plan);
  const Links links(problem.cluster, problem.runtime, expert_places(problem.model, plan.experts, par, problem.cluster), problem.profile);
  const Costs costs = options.interference ? interfering_costs(prices, links, par, problem.cluster.device, load) : model_costs(prices, links, par, load);
  Simulation out;
  for (int s = 0; s < par.pp; ++s) out.stages.push_back(lower(problem, plan, s * par.stage_ranks(), load));
  std::vector<PlayedRank> ranks = folded(out.stages, par, costs);
  if (options.straggler) {
    if (*options.straggler < 0 || *options.straggler >= par.world())
      throw InputError("--straggler", fmt::format("rank {} is outside the plan's {} ranks", *options.straggler, par.world()));
    ranks[static_cast<std::size_t>(*options.straggler / par.stage_ranks())].slowdown = options.straggler_slowdown;
  }
  out.job = make_job(ranks, par);
  out.played = play(out.job, {.cluster = options.contention ? &problem.cluster : nullptr, .interference = options.contention || options.interference, .host_launch = to_picoseconds(options.host_launch)});
  out.critical = critical_path(out.job, out.played);
  out.idle = idle_time(out.job, out.played);
  return out;
}

std::vector<MemoryTimeline> memory_timelines(const Simulation& s, const Problem& problem, const Plan& plan) {
  std::vector<MemoryTimeline> out;
  for (std::size_t r = 0; r < s.stages.size(); ++r) out.push_back(memory_timeline(s.stages[r], problem, plan, s.job, s.played, static_cast<std::int32_t>(r)));
  return out;
}

}  // namespace moeplan
