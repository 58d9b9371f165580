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
  TensorView arrived, squares;      ///< of an optimizer: the gradients of a micro-batch, and the sum of their squares

  Stage(Backend& backend, const OpCall& of);
  /// The call, and what a step does with it before the next. With an optimizer all that a step of one micro-batch does with trained weights: gradients cleared, added to, their
  /// squares summed, the update (executor/train/train.cpp, executor/walk/communication.cpp).
  void perform(Backend& backend) const;
  [[nodiscard]] Bytes bytes() const;   ///< of operands and gradients, those that share memory counted each
  [[nodiscard]] CallContext context() const { return {.expert_rows = rows}; }

 private:
  void make_update(Backend& backend, std::int64_t elements);
};

}  // namespace moeplan
