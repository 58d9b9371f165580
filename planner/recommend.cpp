#include "planner/recommend.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/configs.hpp"
#include "core/error.hpp"
#include "planner/problem.hpp"
#include "planner/space.hpp"
#include "sim/program/program.hpp"

namespace moeplan {
namespace {

/// Bytes that every plan holds somewhere: each weight once, in the smallest type it may be held in.
std::int64_t weight_bytes(const Problem& problem) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const DType storage : storages(problem)) {
    Plan plan;
    plan.frozen_storage = storage;
    plan.stage_layers = {static_cast<std::int64_t>(problem.model.layers.size())};
    std::int64_t sum = idle_state(problem, plan).weights.value;
    for (std::int32_t layer = -1; layer <= static_cast<std::int32_t>(problem.model.layers.size()); ++layer) {
      const StateBytes s = state_bytes(slot_weights(problem, plan, layer), problem, plan);
      sum += (s.weights + s.adapters + s.gradients + s.optimizer).value;
    }
    least = std::min(least, sum);
  }
  return least;
}

/// The problem on `devices` of its kind, or nothing where machines do not make up that count.
std::optional<Problem> on(const Problem& problem, std::int64_t devices) {
  Problem out = problem;
  try {
    out.cluster = resized(problem.cluster, devices);
    check(out);
  } catch (const InputError&) {
    return std::nullopt;
  }
  return out;
}

/// Whether anything fits; a batch that no layout of this count divides does not.
bool fits(const Problem& problem, SearchOptions options) {
  options.progress = nullptr;
  try {
    return anything_fits(problem, options);
  } catch (const InputError&) {
    return false;
  }
}

/// Every count from one device up is excluded by its weights or searched, until one fits.
std::optional<LeastDevices> least_devices(const Problem& problem, const std::vector<std::int64_t>& counts, const RecommendOptions& options) {
  LeastDevices out;
  out.device = problem.cluster.device.name;
  const double weights = static_cast<double>(weight_bytes(problem)), memory = static_cast<double>(problem.cluster.device.memory.value);
  for (const std::int64_t n : counts) {
    const std::optional<Problem> here = on(problem, n);
    if (!here) continue;
    if (weights > memory * static_cast<double>(n) || !fits(*here, options.search)) {
      out.below = n;
      ++out.refused;
      continue;
    }
    out.devices = n;
    break;
  }
  if (out.devices == 0) return std::nullopt;
  if (out.below) {
    SearchOptions search = options.search;
    search.progress = nullptr;
    try {
      out.proof = plan(*on(problem, *out.below), search).infeasible;
    } catch (const InputError&) {
      out.proof = std::nullopt;   // the batch does not divide there
    }
  }
  return out;
}

/// Whole machines one by one: what the least count is looked for among.
std::vector<std::int64_t> every_count(std::int64_t per_machine, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d < per_machine && d <= most; d *= 2)
    if (per_machine % d == 0) out.push_back(d);
  for (std::int64_t d = per_machine; d <= most; d += per_machine) out.push_back(d);
  return out;
}

void check_request(const std::vector<DeviceType>& types, const RecommendOptions& options) {
  for (const DeviceType& t : types) {
    if ((options.deadline || options.budget) && !t.problem.workload.tokens)
      throw InputError(options.deadline ? "--deadline" : "--budget", "there is no number of tokens to train on, so the job has no end", "add --tokens, e.g. --tokens 1e9");
    if (options.budget && !t.problem.cluster.price)
      throw InputError("--budget", t.problem.cluster.device.name + " has no price", "add --price, dollars per device-hour");
  }
}

}  // namespace

std::vector<std::int64_t> device_counts(std::int64_t per_machine, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d < per_machine && d <= most; d *= 2)
    if (per_machine % d == 0) out.push_back(d);
  for (std::int64_t machines = 1; machines * per_machine <= most; machines *= 2) {
    out.push_back(machines * per_machine);
    if (machines >= 2 && machines * 3 / 2 * per_machine <= most) out.push_back(machines * 3 / 2 * per_machine);
  }
  return out;
}

Recommendation recommend(const std::vector<DeviceType>& types, const RecommendOptions& options) {
  check_request(types, options);
  Recommendation out;
  std::optional<Infeasible> closest;
  for (const DeviceType& type : types) {
    const std::int64_t per_machine = type.problem.cluster.devices_per_node;
    const std::optional<LeastDevices> least = least_devices(type.problem, every_count(per_machine, options.most_devices), options);
    if (!least) {
      if (const std::optional<Problem> largest = on(type.problem, std::max<std::int64_t>(1, options.most_devices / per_machine) * per_machine)) {
        const Answer none = plan(*largest, options.search);
        if (none.infeasible && (!closest || none.infeasible->need / none.infeasible->have < closest->need / closest->have)) closest = none.infeasible;
      }
      continue;
    }
    std::vector<std::int64_t> counts = device_counts(per_machine, options.most_devices);
    if (!std::binary_search(counts.begin(), counts.end(), least->devices)) counts.insert(std::upper_bound(counts.begin(), counts.end(), least->devices), least->devices);
    for (const std::int64_t n : counts) {
      if (n < least->devices) continue;
      std::optional<Problem> here = on(type.problem, n);
      if (!here) continue;
      SearchOptions search = options.search;
      search.top = 1;
      try {
        Answer answer = plan(*here, search);
        if (answer.plans.empty()) continue;
        ClusterOption option{.cluster = here->cluster, .best = std::move(answer.plans.front())};
        if (!answer.optimizers.empty()) option.optimizer = answer.optimizers.front();
        const Forecast& f = option.best.forecast;
        const double seconds = f.device_hours_interval ? f.device_hours_interval->high * 3600 / static_cast<double>(n) : 0;
        option.meets = (!options.deadline || seconds <= *options.deadline) && (!options.budget || (f.cost_interval && f.cost_interval->high <= *options.budget));
        out.options.push_back(std::move(option));
      } catch (const InputError&) {
        continue;   // the batch does not divide over this count
      }
    }
    out.least.push_back(*least);
  }
  if (out.options.empty()) {
    out.infeasible = closest;
    return out;
  }
  const auto best_by = [&](auto&& value) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < out.options.size(); ++i)
      if (out.options[i].meets && value(out.options[i]) && (!best || *value(out.options[i]) < *value(out.options[*best]))) best = i;
    return best;
  };
  out.smallest = best_by([](const ClusterOption& o) { return std::optional(static_cast<double>(o.cluster.devices())); });
  out.fastest = best_by([](const ClusterOption& o) { return std::optional(1 / o.best.forecast.tokens_per_second_interval.low); });
  // Without prices device-hours stand for money, on one type of device.
  const bool one_type = types.size() == 1;
  out.cheapest = best_by([&](const ClusterOption& o) -> std::optional<double> {
    const double device_seconds_per_token = static_cast<double>(o.cluster.devices()) / o.best.forecast.tokens_per_second_interval.low;
    if (o.cluster.price) return device_seconds_per_token * o.cluster.price->value;
    return one_type ? std::optional(device_seconds_per_token) : std::nullopt;
  });
  return out;
}

}  // namespace moeplan
