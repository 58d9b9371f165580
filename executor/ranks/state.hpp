#pragma once
/// The whole model's state in one place: what saves and adapters are written from and read into, so that they do not
/// depend on how many ranks there were.

#include "executor/train/train.hpp"

namespace moeplan {

/// The plan that does the same steps on one rank: all micro-batches of all data ranks, no group.
[[nodiscard]] Plan one_rank_plan(const Problem& problem, const Plan& plan);

/// Parameters of the one-rank plan; on rank 0 of a run.
class WholeState {
 public:
  WholeState(const Problem& problem, const Plan& plan, Backend& backend);
  [[nodiscard]] Parameters& parameters() { return parameters_; }

 private:
  Program program_;
  Parameters parameters_;
};

/// Brings weights and moments of everything trained, and router biases, to rank 0's `whole` (null elsewhere). All ranks
/// call it.
void collect(Trainer& trainer, const Problem& problem, WholeState* whole);
/// Gives each rank its part of what `whole` holds; every rank passes one that holds the same.
void distribute(WholeState& whole, Trainer& trainer);

}  // namespace moeplan
