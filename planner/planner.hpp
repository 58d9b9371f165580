#pragma once
/// Searches the plans of a problem: enumerate, reject by rules with reasons in numbers, price, rank, Pareto front.

#include <functional>
#include <map>

#include "core/spec/forecast.hpp"

namespace moeplan {

/// Degrees and switches the user fixed; the others are searched.
struct Pins {
  std::optional<int> pp, tp, cp, ep, etp, dp_replicate, dp_shard, expert_shard;
  std::optional<std::int64_t> micro_batch, prefetch;
  std::optional<Recompute> recompute;
  std::optional<DType> frozen_storage;
  std::optional<bool> reshard_after_forward;
  std::optional<ContextExchange> context_exchange;
  std::optional<StatePassing> state_passing;
  std::optional<Offload> offload;
  /// Of the expert exchange. What changes results (dispatch type, capacity, overflow) is searched only where that is asked for.
  std::optional<DType> dispatch;
  std::optional<DispatchRoute> route;
  std::optional<std::int64_t> expert_chunks, expert_replicas;
  std::optional<double> capacity_factor;
  std::optional<Overflow> overflow;
  std::optional<bool> pad;
  std::optional<ExpertPlacement> placement;
  std::optional<Schedule> schedule;
  std::optional<int> virtual_stages;
  std::vector<std::int64_t> stage_layers;         ///< layers of each pipeline stage; empty: searched
};

struct SearchOptions {
  Pins pins;
  int top = 5;                            ///< plans returned, best first; the Pareto front is returned besides
  int threads = 0;                        ///< 0: all cores; the answer does not depend on it
  bool search_offload = false;            ///< host memory is used where it helps
  /// What changes results: fp8 on the way to the experts beside bf16, capacities beside none, rerouting beside dropping, every optimizer.
  bool search_dispatch = false, search_capacity = false, search_overflow = false, search_optimizer = false;
  /// All that changes no result: schedules, virtual and uneven stages, pieces, route, placement and replicas of the expert exchange.
  bool wide = false;
  bool full_attention_flops = false;      ///< MFU convention: count causal attention whole
  std::function<void(double)> progress;   ///< called with the share decided, from any thread
};

struct Answer {
  std::int64_t searched = 0, feasible = 0;       ///< candidates decided, each a distinct lowering; of those, how many fit
  std::int64_t bounded = 0;                       ///< of the feasible: decided by a bound on their time, because a faster plan needs no more memory; the rest were priced
  std::int64_t dominated = 0;                     ///< wide search: so decided before it was known whether they fit; searched = feasible + dominated + rejected
  std::map<std::string, std::int64_t> rejected;   ///< by rule
  std::map<std::string, std::string> example;     ///< by rule: one reason in numbers, of the candidate closest to fitting
  std::vector<RankedPlan> plans;                  ///< best step time first, then the rest of the Pareto front
  std::vector<std::size_t> pareto;                ///< indices into plans: step time, peak memory, device-hours, money
  std::vector<OptimizerKind> optimizers;          ///< of each plan, where they were searched; the problem's otherwise
  std::optional<Infeasible> infeasible;
};

/// Throws InputError for pins that cannot fold onto the cluster.
[[nodiscard]] Answer plan(const Problem& problem, const SearchOptions& options);

/// Whether any candidate fits in memory; no time is priced. Throws as `plan` does for pins.
[[nodiscard]] bool anything_fits(const Problem& problem, const SearchOptions& options);

/// Prices one plan as given. `contention`: whether its exchanges, its compute and the weights that are gathered and reduced beside them share links and
/// multiprocessors (sim/cost/contention.hpp), or each has them to itself.
[[nodiscard]] Forecast forecast(const Problem& problem, const Plan& plan, bool full_attention_flops = false, bool contention = true);

/// A plan file: format, problem (model config, cluster, workload, load, runtime, profile included), plan, forecast.
[[nodiscard]] Json plan_file(const Problem& problem, const RankedPlan& ranked);
struct LoadedPlan {
  Problem problem;
  Plan plan;
};
/// Reads a plan file back. Throws InputError.
[[nodiscard]] LoadedPlan read_plan_file(const Json& json, const std::string& where);

}  // namespace moeplan
