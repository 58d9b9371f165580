#pragma once
/// A call alone: its operands in a backend's memory, made up.

#include <vector>

#include "executor/backend/backend.hpp"

namespace moeplan {

/// Reals nearly normal, integers by kernels/example_values.hpp; what a backward reads again comes from a forward. Throws InputError where it does not fit.
struct Stage {
  std::vector<Backend::Memory> memory;
  std::vector<TensorView> values, gradients;
  TensorView rows;                  ///< of each expert (i32), where a run on one rank has them: in the backend's memory
  std::vector<TensorView> fresh;    ///< what has just been written when the call comes: a forward's inputs, the gradients that arrive at a backward
  OpCall call;
  TensorView counts, shares;        ///< of a router's forward: what a step keeps of its choice (executor/backend/tally.hpp)

  Stage(Backend& backend, const OpCall& of);
  /// The call, and what a step does with it before the next.
  void perform(Backend& backend) const;
  [[nodiscard]] CallContext context() const { return {.expert_rows = rows}; }
};

}  // namespace moeplan
