#include "planner/optimizers.hpp"

#include <numeric>
#include <tuple>

#include "planner/incumbents.hpp"

namespace moeplan {

Answer plan_over_optimizers(const Problem& problem, const SearchOptions& options) {
  Answer all;
  std::vector<RankedPlan> plans;
  std::vector<OptimizerKind> optimizers;
  SearchOptions one = options;
  one.search_optimizer = false;
  Problem of = problem;
  constexpr double kinds = static_cast<double>(EnumNames<OptimizerKind>::names.size());
  double done = 0;
  for (const auto& [kind, name] : EnumNames<OptimizerKind>::names) {
    of.workload.optimizer = kind;
    if (options.progress) one.progress = [&, done](double share) { options.progress((done + share) / kinds); };
    Answer answer = plan(of, one);
    done += 1;
    all.searched += answer.searched, all.feasible += answer.feasible, all.bounded += answer.bounded, all.dominated += answer.dominated;
    for (const auto& [rule, count] : answer.rejected) all.rejected[rule] += count;
    for (auto& [rule, reason] : answer.example) all.example.try_emplace(rule, std::move(reason));
    if (answer.infeasible && (!all.infeasible || answer.infeasible->need < all.infeasible->need)) all.infeasible = std::move(answer.infeasible);
    for (RankedPlan& each : answer.plans) {
      plans.push_back(std::move(each));
      optimizers.push_back(kind);
    }
  }
  if (plans.empty()) return all;
  all.infeasible.reset();
  // As within one search; where two rank alike the optimizer named first comes first.
  std::vector<std::size_t> order(plans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto rank = [&](std::size_t i) {
    const Forecast& f = plans[i].forecast;
    return std::tuple(-throughput_bin(f.tokens_per_second_interval.low), f.memory_p95.peak().value, i);
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
  std::vector<std::pair<std::int64_t, double>> before;
  for (const std::size_t i : order) {
    const std::int64_t peak = plans[i].forecast.memory_p95.peak().value;
    const double risk = plans[i].forecast.out_of_memory_risk;
    const bool front = std::none_of(before.begin(), before.end(), [&](const auto& b) { return b.first <= peak && b.second <= risk; });
    if (!front && all.plans.size() >= static_cast<std::size_t>(options.top)) continue;
    if (front) before.emplace_back(peak, risk), all.pareto.push_back(all.plans.size());
    all.plans.push_back(std::move(plans[i]));
    all.optimizers.push_back(optimizers[i]);
  }
  return all;
}

}  // namespace moeplan
