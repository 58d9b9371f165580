#include "cli/forecast_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/table.hpp"
#include "planner/prices.hpp"
#include "planner/space.hpp"

namespace moeplan::cli {
namespace {

/// Category names as people read them: "dispatch buffers".
std::string spaced(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', ' ');
  return out;
}

}  // namespace

std::string problem_text(const Problem& problem) {
  const Workload& w = problem.workload;
  const ClusterSpec& c = problem.cluster;
  const std::string batch = fmt::format("{} sequences a step", grouped(w.global_batch.value_or(default_global_batch(problem))));
  std::string out = wrapped(fmt::format("{}: {}, {}, sequence {}, {}{}", printable(problem.model_name), tuning_text(w), name_of(w.optimizer), grouped(w.sequence_length), batch,
                                        w.tokens ? fmt::format(", {} tokens in all", short_count(*w.tokens)) : ""), kWidth, 2) + "\n";
  const bool foreign = !problem.profile.samples.empty() && problem.profile.device.name != c.device.name;
  const std::string elsewhere = foreign ? fmt::format(", measured on {}: intervals are wider", printable(problem.profile.device.name)) : "";
  out += wrapped(fmt::format("on {} {} ({} x {}, {} each{}); experts loaded as {}, runtime {}, times from profile {}{}", grouped(c.devices()), printable(c.device.name), c.nodes,
                             c.devices_per_node, human(c.device.memory), c.price ? fmt::format(", ${:.2f} an hour", c.price->value) : "", printable(problem.load.name),
                             printable(problem.runtime.name), printable(problem.profile.name), elsewhere), kWidth, 2) + "\n";
  return out;
}

std::string breakdown_text(const Context& context, const Problem& problem, const Plan& plan, const Forecast& f) {
  std::vector<std::pair<std::string, Bytes>> memory;
  for (const auto& [category, name] : EnumNames<MemoryCategory>::names)
    if (f.memory[category].value > 0) memory.emplace_back(spaced(name), f.memory[category]);
  std::stable_sort(memory.begin(), memory.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  const Bytes have = problem.cluster.device.memory;
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, bytes] : memory) rows.push_back({name, human(bytes), percent(bytes / have)});
  rows.push_back({"peak", human(f.memory.peak()), percent(f.memory.peak() / have)});
  rows.push_back({"peak, 95th percentile", human(f.memory_p95.peak()), percent(f.memory_p95.peak() / have)});
  const std::string left = heading(context, "memory of the fullest GPU") + "\n" + table({{"at its peak"}, {"bytes", true}, {"of device", true}}, rows);

  std::vector<std::pair<std::string, Seconds>> time;
  for (const auto& [category, name] : EnumNames<TimeCategory>::names)
    if (f.time[static_cast<std::size_t>(category)].value > 1e-9) time.emplace_back(spaced(name), f.time[static_cast<std::size_t>(category)]);
  std::stable_sort(time.begin(), time.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  rows.clear();
  for (const auto& [name, seconds] : time) rows.push_back({name, duration(seconds), percent(seconds / f.step)});
  rows.push_back({"step", duration(f.step), "100.0 %"});
  rows.push_back({"step, 95th percentile", duration(f.step_p95), percent(f.step_p95 / f.step)});
  const std::string right = heading(context, "time of a step") + "\n" + table({{"exposed"}, {"time", true}, {"of step", true}}, rows);
  std::string out = beside(left, right);
  if (!f.memory.peak_at.empty()) out += wrapped("Memory peaks in: " + printable(f.memory.peak_at) + fmt::format(" (stage {}).", f.worst_stage), kWidth, 2) + "\n";
  out += fmt::format("Times rest on: {} measured, {} interpolated, {} roofline.\n", percent(f.basis[0]), percent(f.basis[1]), percent(f.basis[2]));
  std::string beside;
  for (const LinkSamples::Share& s : measured_shares(problem, {&plan, 1})) beside += fmt::format("{}{} {} ({} ranks)", beside.empty() ? "" : ", ", s.collective, percent(s.share), s.ranks);
  if (!beside.empty()) out += wrapped("Computing beside a call loses, measured: " + printable(beside) + ".", kWidth, 2) + "\n";
  return out;
}

std::string clock_text(const Problem& problem, const Plan& plan) {
  const Prices prices = prices_of(problem, plan);
  const PowerProfile* power = prices.power();
  if (power == nullptr) return {};
  return wrapped(fmt::format("clock: {:.0f} MHz while it computes, held to {:.0f} W on average; measured at rest, at {:.0f} MHz, and longer by what follows the clock", *prices.clock(), power->limit, power->boost), kWidth, 2) + "\n";
}

}  // namespace moeplan::cli
