#include "sim/engine/deadlock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/error.hpp"
#include "sim/engine/engine.hpp"

namespace moeplan {
namespace {
std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
using Place = std::pair<std::int32_t, std::int32_t>;   // rank, task
}  // namespace

std::string describe(const Job& job, std::int32_t rank, std::int32_t task) {
  const JobRank& r = job.ranks[index(rank)];
  const Task& t = job.programs[index(r.program)].tasks[index(task)];
  std::string what;
  if (t.kind == Task::Kind::pass) what = job.names[index(job.passes[index(t.pass)].name)];
  else what = fmt::format("{} of {}", t.kind == Task::Kind::send ? "send" : "receive", t.downstream ? "activations" : "gradients");
  if (t.layer >= 0) what += fmt::format(", layer {}", t.layer);
  if (t.micro_batch >= 0) what += fmt::format(", micro-batch {}", t.micro_batch);
  return fmt::format("stage {} (rank {}): {}", r.stage, r.rank, what);
}

std::string Deadlock::report(const std::vector<std::vector<std::pair<Picoseconds, Picoseconds>>>& tasks) const {
  const auto list = [&](std::int32_t rank) -> const std::vector<Task>& { return job_.programs[index(job_.ranks[index(rank)].program)].tasks; };
  const auto ended = [&](std::int32_t rank, std::int32_t task) { return tasks[index(rank)][index(task)].second >= 0; };
  const auto first_open = [&](std::int32_t rank, std::optional<Queue> queue) -> std::optional<Place> {
    for (std::size_t t = 0; t < list(rank).size(); ++t)
      if (!ended(rank, static_cast<std::int32_t>(t)) && (!queue || list(rank)[t].queue == *queue)) return Place{rank, static_cast<std::int32_t>(t)};
    return std::nullopt;
  };
  const auto next = [&](Place at) -> std::optional<Place> {
    const auto [rank, task] = at;
    const Task& t = list(rank)[index(task)];
    if (tasks[index(rank)][index(task)].first >= 0) {
      for (const auto& [waiter, group] : waiting_[index(rank)]) {
        if (waiter != task) continue;
        for (const std::int32_t member : job_.groups[index(group)]) {
          const auto& there = waiting_[index(member)];
          if (std::none_of(there.begin(), there.end(), [g = group](const auto& w) { return w.second == g; })) return first_open(member, Queue::main);
        }
      }
      return std::nullopt;
    }
    for (const std::int32_t a : t.after) if (!ended(rank, a)) return Place{rank, a};
    if (t.queue != Queue::none)
      if (const auto head = first_open(rank, t.queue); head && head->second != task) return head;
    if (t.kind != Task::Kind::receive) return std::nullopt;
    const JobRank& r = job_.ranks[index(rank)];
    const std::int32_t from = t.downstream ? r.before : r.behind;
    if (from < 0) return std::nullopt;
    std::size_t n = 0;
    for (std::int32_t i = 0; i < task; ++i) n += list(rank)[index(i)].kind == Task::Kind::receive && list(rank)[index(i)].downstream == t.downstream;
    for (std::size_t i = 0; i < list(from).size(); ++i)
      if (list(from)[i].kind == Task::Kind::send && list(from)[i].downstream == t.downstream && n-- == 0) return Place{from, static_cast<std::int32_t>(i)};
    return std::nullopt;
  };
  std::optional<Place> at;
  for (std::size_t r = 0; r < tasks.size() && !at; ++r) at = first_open(static_cast<std::int32_t>(r), std::nullopt);
  if (!at) return {};
  std::vector<Place> path;
  while (at && std::find(path.begin(), path.end(), *at) == path.end()) {
    path.push_back(*at);
    at = next(*at);
  }
  std::string text = at ? "the ranks wait for each other: " : "the ranks wait for what never comes: ";
  const auto first = at ? std::find(path.begin(), path.end(), *at) : path.begin();
  for (auto it = first; it != path.end(); ++it) text += (it == first ? "" : " -> ") + describe(job_, it->first, it->second);
  if (at) text += " -> " + describe(job_, at->first, at->second);
  return text;
}

void check_messages(const Job& job, std::span<const ProgramIndex> programs) {
  for (const JobRank& r : job.ranks)
    for (const bool downstream : {true, false}) {
      const std::size_t d = downstream ? 0 : 1;
      const std::size_t received = programs[at_index(r.program)].receives[d].size();
      const std::int32_t from = downstream ? r.before : r.behind;
      const std::int32_t sent = from < 0 ? 0 : programs[at_index(job.ranks[at_index(from)].program)].sends[d];
      if (received > at_index(sent))
        throw InputError("plan", fmt::format("stage {} receives {} {} messages, its neighbour sends {}", r.stage, received, downstream ? "activation" : "gradient", sent));
    }
}

}  // namespace moeplan
