#pragma once
/// What changes while a job is played.

#include <array>
#include <deque>
#include <vector>

#include "sim/engine/job.hpp"

namespace moeplan {

/// A step or message under way. `left`: picoseconds of full speed at `since`.
struct Running {
  std::int32_t rank = 0, task = 0, step = -1, cause = -1, flow = -1, joint = -1;
  Picoseconds begin = 0, since = 0;
  double left = 0, speed = 1;
  std::uint32_t version = 0;
};

struct RankState {
  std::vector<std::int32_t> waits;                           ///< per task: unfinished `after`, plus one while its queue is not at it, plus one for a message
  std::array<std::size_t, kQueues> at{};                     ///< position in the queue
  std::array<std::vector<std::int32_t>, kQueues> steps;      ///< of the running pass: unfinished `after` per step
  std::array<std::int32_t, kQueues> open{};                  ///< of the running pass: steps not ended
  std::int32_t computing = -1;                               ///< running compute step
  double taken = 0;                                          ///< share of the multiprocessors that communication holds
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
