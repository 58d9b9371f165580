#pragma once
/// What a step keeps of a router's choice, right behind the call: how often each expert was chosen, and each expert's share of the scores.

#include <span>

#include "executor/backend/backend.hpp"

namespace moeplan {

/// `operands`: those of the call; `counts` (i32) and `shares` (f32): one for each of its choices.
inline void keep_choice(Backend& backend, const op::Router& router, std::span<const TensorView> operands, const TensorView& counts, const TensorView& shares) {
  const Operands contract = router.operands();
  for (std::size_t o = 0; o < contract.size(); ++o) {
    if (contract[o].name == "counts") backend.copy(operands[o], counts);
    if (contract[o].name == "scores") backend.sum_shares(operands[o], shares);
  }
}

}  // namespace moeplan
