#pragma once
/// The whole model's state in one place: what saves and adapters are written from and read into, so that they do not
/// depend on how many ranks there were.

#include "executor/train/train.hpp"

namespace moeplan {

/// The plan that does the same steps on one rank: all micro-batches of all data ranks, no group.
[[nodiscard]] Plan one_rank_plan(const Problem& problem, const Plan& plan);

/// The state of the one-rank plan, in this machine's memory; on rank 0 of a run.
class WholeState {
 public:
  /// `storage` as the run's, so that nothing is rounded on the way.
  WholeState(const Problem& problem, const Plan& plan, CpuStorage storage);
  /// What training changes has memory, all else only names and shapes.
  [[nodiscard]] Parameters& parameters() { return parameters_; }
  [[nodiscard]] Backend& backend() { return *host_; }

 private:
  std::unique_ptr<Backend> host_;
  Parameters parameters_;
};

/// Brings weights and moments of everything trained, and router biases, to rank 0's `whole` (null elsewhere). All ranks
/// call it.
void collect(Trainer& trainer, const Problem& problem, WholeState* whole);
/// Gives each rank its part of what rank 0's `whole` holds (null elsewhere). All ranks call it.
void distribute(WholeState* whole, Trainer& trainer, const Problem& problem);

}  // namespace moeplan
