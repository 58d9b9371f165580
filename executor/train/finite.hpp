#pragma once
/// Numbers that are not finite: which rank has them, before they are saved or spread further. What a rank holds is
/// looked through by the sum of squares, on its device, only when it must be: before a save, after a load, and when a
/// step's loss or gradient is not finite.

#include <optional>
#include <string>

#include "executor/comm/communicator.hpp"
#include "executor/state/parameters.hpp"

namespace moeplan {

/// The first of the tensors that training changes (weights and moments; `frozen` too, where set and stored as plain
/// numbers) with a value that is not finite: "model.layers.3.mlp.gate.weight" or "first moment of ...". Squares beyond
/// the range of float count as such.
[[nodiscard]] std::optional<std::string> first_not_finite(Parameters& parameters, Backend& backend, bool frozen);

/// What a rank knows of itself when a step was not finite, in the order of what explains what.
struct StepFault {
  std::optional<std::string> state;  ///< a tensor that it holds
  bool loss = false;                 ///< the loss of its tokens
  bool gradient = false;             ///< what it gave to the sums over ranks
};

/// Who is at fault, agreed by all: "rank 1 on gpu07: the loss of its tokens", empty where no rank stands out.
/// Collective. Where weights or moments of a rank are not finite no later step can be: the first such rank throws
/// RankBlamed, the others return.
[[nodiscard]] std::string agree_on_fault(Communicator& world, const StepFault& mine);

/// Throws RankBlamed on all ranks' behalf where one of them holds what is not finite; the first of them throws. `world`
/// null: alone.
void require_finite_state(Communicator* world, Parameters& parameters, Backend& backend, const std::string& when);

/// Of a whole model's state on the host, put together from ranks that lie as `place` says: throws RankBlamed naming the
/// tensor and the rank that gave the first value that is not finite; of another stage's tensors, the rank that looks.
/// `pieces` are its own.
void require_finite_pieces(Parameters& whole, Backend& backend, Parameters& pieces);

}  // namespace moeplan
