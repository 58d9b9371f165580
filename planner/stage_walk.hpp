#pragma once
/// One pass of a stage, slot after slot. The search takes the same seconds from a closed form (stage_pass.hpp); this is
/// what that is held against.

#include <cstdint>
#include <vector>

namespace moeplan {

/// Seconds of a pass, and those that exceed the slots' own.
struct StageWalk {
  double total = 0, exposed = 0;
};

/// Forward or backward pass of one stage: weights are gathered on a lane of their own, `prefetch` slots ahead, under
/// the slots' own time; gradients are reduced on that lane after their slot. Seconds per slot, in the order of the
/// pass; a slot of 0 has no pass (a frozen embedding's backward), so nothing is gathered on its account.
[[nodiscard]] StageWalk walk_stage(const std::vector<double>& compute, const std::vector<double>& gather,
                                   const std::vector<double>& reduce, std::int64_t prefetch);

}  // namespace moeplan
