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

  Stage(Backend& backend, const OpCall& call);
  [[nodiscard]] CallContext context() const { return {.expert_rows = rows}; }
};

}  // namespace moeplan
