#pragma once
/// Says why nothing moves any more: follows what each unfinished task waits for until a task comes up twice.

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine/successors.hpp"

namespace moeplan {

class Deadlock {
 public:
  explicit Deadlock(const Job& job) : job_(job), waiting_(job.ranks.size()) {}

  /// A rank's task has come to a call of `group` whose other members are not all there.
  void arrive(std::int32_t rank, std::int32_t task, std::int32_t group) { waiting_[static_cast<std::size_t>(rank)].push_back({task, group}); }
  /// Empty when every task has ended; else the cycle, each waiter before what it waits for. `tasks`: start and end per rank and task, -1: not yet.
  [[nodiscard]] std::string report(const std::vector<std::vector<std::pair<Picoseconds, Picoseconds>>>& tasks) const;

 private:
  const Job& job_;
  std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> waiting_;   ///< per rank: task, group
};

/// Throws InputError if a rank receives more messages than its neighbour sends. `programs`: one for each of the job's.
void check_messages(const Job& job, std::span<const ProgramIndex> programs);

}  // namespace moeplan
