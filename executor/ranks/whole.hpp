#pragma once
/// Tensors whole again, from the pieces that the ranks hold.

#include "executor/ranks/groups.hpp"
#include "executor/state/parameters.hpp"

namespace moeplan {

/// The whole tensor of a parameter's piece (`values`, `first_moment` ...: memory of `held_shape()` in `type`), as
/// floats. All ranks of the parameter's stage call it for the same parameters in the same order; each gets the whole.
[[nodiscard]] std::vector<float> whole_values(const Parameter& p, const Backend::Memory& memory, DType type,
                                              RankGroups* ranks, Backend& backend);

}  // namespace moeplan
