#include "cli/simulation.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/table.hpp"

namespace moeplan::cli {
namespace {

std::string spaced(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', ' ');
  return out;
}

}  // namespace

Json times_json(const ActivityTimes& times) {
  Json out = Json::object();
  for (const auto& [activity, name] : EnumNames<Activity>::names)
    if (const Picoseconds t = times[static_cast<std::size_t>(activity)]; t > 0) out[std::string(name)] = to_seconds(t).value;
  return out;
}

std::string critical_path_text(const Context& context, const Simulation& s) {
  const Seconds step = to_seconds(s.played.step);
  std::vector<std::vector<std::string>> rows;
  for (const auto& [activity, name] : EnumNames<Activity>::names)
    if (const Picoseconds time = s.critical.time[static_cast<std::size_t>(activity)]; time > 0)
      rows.push_back({duration(to_seconds(time)), percent(to_seconds(time) / step), spaced(name)});
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return std::stod(a[1]) > std::stod(b[1]); });
  return heading(context, fmt::format("critical path ({} events)", s.critical.records.size())) + "\n" + table({{"time", true}, {"share", true}, {"spent on"}}, rows);
}

std::string idle_text(const Context& context, const Simulation& s, const std::vector<Bytes>& peak) {
  const Seconds step = to_seconds(s.played.step);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t r = 0; r < s.idle.size(); ++r) {
    const RankIdle& idle = s.idle[r];
    std::string causes = idle.bubble > 0 ? "bubble " + percent(to_seconds(idle.bubble) / step) : "";
    for (const auto& [activity, name] : EnumNames<Activity>::names)
      if (const Picoseconds w = idle.waiting[static_cast<std::size_t>(activity)]; w > 0) causes += (causes.empty() ? "" : ", ") + spaced(name) + " " + percent(to_seconds(w) / step);
    rows.push_back({std::to_string(s.job.ranks[r].stage), percent(to_seconds(idle.busy) / step)});
    if (!peak.empty()) rows.back().push_back(human(peak[r]));
    rows.back().push_back(causes);
  }
  if (peak.empty()) return heading(context, "each stage: compute busy, and what the rest of the step waits for") + "\n" + table({{"stage", true}, {"busy", true}, {"idle"}}, rows);
  return heading(context, "each stage: compute busy, peak memory, and what the rest of the step waits for") + "\n" + table({{"stage", true}, {"busy", true}, {"peak", true}, {"idle"}}, rows);
}

std::string schedule_text(const Plan& plan) {
  std::string out;
  if (plan.schedule != Schedule::one_forward_one_backward) out = fmt::format("; schedule {}", name_of(plan.schedule));
  if (plan.virtual_stages > 1) out += fmt::format(" x {}", plan.virtual_stages);
  if (plan.experts.chunks > 1) out += fmt::format("; exchange in {} pieces", plan.experts.chunks);
  return out;
}

}  // namespace moeplan::cli
