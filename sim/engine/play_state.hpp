#pragma once
/// What changes while a job is played.

#include <array>
#include <deque>
#include <vector>

#include "sim/engine/successors.hpp"

namespace moeplan {

/// std::llround and std::ceil of what is not negative, without their calls.
[[nodiscard]] inline Picoseconds nearest(double x) {
  const auto whole = static_cast<Picoseconds>(x);
  return whole + (x - static_cast<double>(whole) >= 0.5);
}
[[nodiscard]] inline Picoseconds not_below(double x) {
  const auto whole = static_cast<Picoseconds>(x);
  return whole + (x > static_cast<double>(whole));
}

/// A step or message under way, on a cache line of its own. `left`: picoseconds of full speed at `since`.
struct alignas(64) Running {
  std::int32_t rank = 0, task = 0, step = -1, cause = -1, flow = -1, joint = -1;
  Picoseconds since = 0;
  double left = 0, speed = 1;
  std::uint32_t version = 0;
  bool launch = false;          ///< waits until the host has issued it
};

/// In which order the host issues a pass: in list order, up to each host wait.
struct HostOrder {
  std::vector<std::int32_t> segment, issued;   ///< per step: host waits before it; calls issued since the last one, its own included
  std::vector<std::int32_t> calls;             ///< per segment
  HostOrder(const StepGraph& pass, const Job& job) {
    calls.push_back(0);
    for (const Step& s : pass.steps) {
      if (s.track != Track::host) calls.back() += s.detail >= 0 ? static_cast<std::int32_t>(job.details[static_cast<std::size_t>(s.detail)].parts.size()) : 1;
      segment.push_back(static_cast<std::int32_t>(calls.size()) - 1);
      issued.push_back(calls.back());
      if (s.track == Track::host) calls.push_back(0);
    }
  }
};

/// A rank as it is played. What differs in length from program to program lies in arrays of the player. Three cache lines: what
/// every step reads, what passes, calls and messages read, what interference and host launches read.
struct alignas(64) RankState {
  const TaskBrief* tasks = nullptr;
  const ProgramIndex* program = nullptr;
  std::uint16_t* waits = nullptr;                            ///< per task: unfinished `after`, plus one while its queue is not at it, plus one for a message
  std::pair<Picoseconds, Picoseconds>* spans = nullptr;      ///< per task: start, end
  std::array<std::uint16_t*, kQueues> steps{};               ///< of the running pass: unfinished `after` per step
  std::array<std::int32_t, kQueues> open{};                  ///< of the running pass: steps not ended
  double slowdown = 1;

  std::array<std::uint32_t, kQueues> at{};                   ///< position in the queue
  std::int32_t before = -1, behind = -1;                     ///< these three as in JobRank
  std::array<std::int32_t, 10> groups{};
  std::int32_t computing = -1;                               ///< running compute step
  std::int32_t exchanging = -1;                              ///< running call that compute slows

  double taken = 0, memory_taken = 0;                        ///< shares of the multiprocessors and of the bandwidth that communication holds
  std::vector<Picoseconds> host;                             ///< of the running pass: when the host began to issue each segment
  Picoseconds host_next = 0;                                 ///< when it can issue the next pass
};

/// Members that have arrived at a call of their group.
struct Joint {
  std::vector<std::int32_t> members;                         ///< indices of Running
};

/// Calls of a group on a track that have not all their members.
struct Arrivals {
  std::deque<Joint> waiting;
  std::vector<std::size_t> calls;                            ///< per member: calls it has come to
  std::size_t started = 0;
};

}  // namespace moeplan
