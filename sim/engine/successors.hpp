#pragma once
/// What playing a job reads again and again, packed: tasks and steps without their lists, who follows whom, the queues, the
/// messages by number. The ranks that run a program share it, so it stays in the caches.

#include <array>
#include <span>
#include <vector>

#include "sim/engine/job.hpp"

namespace moeplan {

[[nodiscard]] constexpr std::size_t at_index(std::int32_t i) { return static_cast<std::size_t>(i); }

/// Successor lists in one array: those of i are list[begin[i] .. begin[i+1]).
struct Successors {
  std::vector<std::int32_t> begin, list;
  template <class Items>
  explicit Successors(const Items& items) : begin(items.size() + 1, 0) {
    for (const auto& item : items) for (const std::int32_t a : item.after) ++begin[at_index(a) + 1];
    for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    list.resize(at_index(begin.back()));
    std::vector<std::int32_t> at(begin.begin(), begin.end() - 1);
    for (std::size_t i = 0; i < items.size(); ++i)
      for (const std::int32_t a : items[i].after) list[at_index(at[at_index(a)]++)] = static_cast<std::int32_t>(i);
  }
  [[nodiscard]] std::span<const std::int32_t> of(std::int32_t i) const {
    return {list.data() + begin[at_index(i)], static_cast<std::size_t>(begin[at_index(i) + 1] - begin[at_index(i)])};
  }
};

struct TaskBrief {
  std::int32_t pass = -1, call = -1;
  Task::Kind kind = Task::Kind::pass;
  Queue queue = Queue::main;
  bool downstream = true;
};

struct StepBrief {
  Picoseconds duration = 0;
  std::int32_t call = -1;
  float memory_bound = 0;
  Track track = Track::compute;
};

struct PassIndex {
  Successors next;
  std::vector<StepBrief> steps;
  std::vector<std::uint16_t> waits;                          ///< per step: how many come before it
  std::vector<std::int32_t> first;                           ///< steps that wait for none
  explicit PassIndex(const StepGraph& pass) : next(pass.steps) {
    for (std::size_t i = 0; i < pass.steps.size(); ++i) {
      const Step& s = pass.steps[i];
      steps.push_back({s.duration, s.call, s.memory_bound, s.track});
      waits.push_back(static_cast<std::uint16_t>(s.after.size()));
      if (s.after.empty()) first.push_back(static_cast<std::int32_t>(i));
    }
  }
};

struct ProgramIndex {
  Successors next;
  std::vector<TaskBrief> tasks;
  std::array<std::vector<std::int32_t>, kQueues> queue;      ///< tasks in list order
  std::vector<std::int32_t> ordinal;                         ///< per message: how many of its kind and direction come before it
  std::array<std::vector<std::int32_t>, 2> receives;         ///< per direction (0 downstream): tasks in list order
  std::array<std::int32_t, 2> sends{};
  explicit ProgramIndex(const JobProgram& p) : next(p.tasks), ordinal(p.tasks.size(), -1) {
    for (std::size_t t = 0; t < p.tasks.size(); ++t) {
      const Task& task = p.tasks[t];
      tasks.push_back({task.pass, task.call, task.kind, task.queue, task.downstream});
      const std::size_t direction = task.downstream ? 0 : 1;
      if (task.queue != Queue::none) queue[static_cast<std::size_t>(task.queue)].push_back(static_cast<std::int32_t>(t));
      if (task.kind == Task::Kind::send) ordinal[t] = sends[direction]++;
      if (task.kind == Task::Kind::receive) {
        ordinal[t] = static_cast<std::int32_t>(receives[direction].size());
        receives[direction].push_back(static_cast<std::int32_t>(t));
      }
    }
  }
};

}  // namespace moeplan
