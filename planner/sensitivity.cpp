#include "planner/sensitivity.hpp"

#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/write.hpp"

namespace moeplan {
namespace {

struct Number {
  std::string name;
  std::function<void(Problem&, double)> scale;
};

/// Rates of the device and of its links: what data sheets, clocks and neighbours change.
std::vector<Number> numbers(const Problem& problem) {
  std::vector<Number> out{{"bf16 peak", [](Problem& p, double f) { p.cluster.device.peak.at("bf16") = p.cluster.device.peak.at("bf16") * f; }},
                          {"memory bandwidth", [](Problem& p, double f) { p.cluster.device.memory_bandwidth = p.cluster.device.memory_bandwidth * f; }}};
  for (std::size_t t = 0; t < problem.cluster.tiers.size(); ++t)
    out.push_back({problem.cluster.tiers[t].name + " bandwidth", [t](Problem& p, double f) { p.cluster.tiers[t].bandwidth = p.cluster.tiers[t].bandwidth * f; }});
  return out;
}

/// Throughput of `b` over that of `a` in logarithms, with the number at `factor`.
double gap(const Problem& problem, const Number& number, double factor, const Plan& a, const Plan& b) {
  Problem scaled = problem;
  number.scale(scaled, factor);
  return std::log(forecast(scaled, b).tokens_per_second / forecast(scaled, a).tokens_per_second);
}

/// The factor nearest to 1 at which `b` overtakes `a`.
std::optional<double> crossing(const Problem& problem, const Number& number, const Plan& a, const Plan& b) {
  if (gap(problem, number, 1, a, b) >= 0) return std::nullopt;
  std::optional<double> nearest;
  for (const double direction : {1.0, -1.0}) {
    double before = 0;
    for (const double step : {0.25, 0.75, 2.0}) {   // factors 1.19, 1.68, 4
      if (nearest && before >= std::abs(std::log2(*nearest))) break;
      if (gap(problem, number, std::exp2(direction * step), a, b) <= 0) { before = step; continue; }
      double low = before, high = step;
      for (int i = 0; i < 6; ++i) {
        const double middle = (low + high) / 2;
        (gap(problem, number, std::exp2(direction * middle), a, b) > 0 ? high : low) = middle;
      }
      if (!nearest || high < std::abs(std::log2(*nearest))) nearest = std::exp2(direction * high);
      break;
    }
  }
  return nearest;
}

}  // namespace

std::vector<Threshold> thresholds(const Problem& problem, const Plan& chosen, const std::vector<Plan>& others, int threads) {
  const std::vector<Number> all = numbers(problem);
  std::vector<std::optional<Threshold>> found(all.size() * others.size());
  tbb::task_arena arena(threads > 0 ? std::min(threads, tbb::info::default_concurrency()) : tbb::task_arena::automatic);
  arena.execute([&] {
    tbb::parallel_for(std::size_t{0}, found.size(), [&](std::size_t i) {
      const Number& number = all[i / others.size()];
      const Plan& other = others[i % others.size()];
      if (const auto factor = crossing(problem, number, chosen, other))
        found[i] = Threshold{number.name, *factor, other, std::expm1(gap(problem, number, *factor * *factor, chosen, other))};
    });
  });
  const auto away = [](const Threshold& t) { return std::abs(std::log(t.factor)); };
  std::vector<Threshold> out;
  for (std::size_t n = 0; n < all.size(); ++n) {
    const Threshold* nearest = nullptr;
    for (std::size_t o = 0; o < others.size(); ++o)
      if (const auto& t = found[n * others.size() + o]; t && (!nearest || away(*t) < away(*nearest))) nearest = &*t;
    if (nearest) out.push_back(*nearest);
  }
  std::stable_sort(out.begin(), out.end(), [&](const Threshold& a, const Threshold& b) { return away(a) < away(b); });
  return out;
}

std::optional<MoreMemory> more_memory(const Problem& problem, const Forecast& chosen, const SearchOptions& options) {
  for (const double factor : {1.1, 1.25, 1.5, 2.0}) {
    Problem larger = problem;
    larger.cluster.device.memory = {static_cast<std::int64_t>(static_cast<double>(problem.cluster.device.memory.value) * factor)};
    const Answer answer = plan(larger, options);
    for (const RankedPlan& r : answer.plans) {
      if (r.forecast.memory_p95.peak() <= problem.cluster.device.memory) continue;
      const double faster = r.forecast.tokens_per_second / chosen.tokens_per_second - 1;
      if (faster > 0.005) return MoreMemory{r, faster};
    }
  }
  return std::nullopt;
}

int distance(const Plan& a, const Plan& b) {
  const Json x = to_json(a), y = to_json(b);
  int n = 0;
  for (const auto& [key, value] : x.items()) {
    if (key == "stage_layers" || key == "micro_batches") continue;   // they follow from the others
    if (key != "parallelism") { n += value != y.at(key) ? 1 : 0; continue; }
    for (const auto& [degree, size] : value.items()) n += size != y.at(key).at(degree) ? 1 : 0;
  }
  return n;
}

}  // namespace moeplan
