#pragma once
/// 1F1B over stages of unequal times, exactly, without playing every pass once the pipeline repeats itself.
///
/// Number the forward pass of micro-batch j on stage s by a = j + s - (p - 1). Then a pass waits only for passes of the same or the
/// previous number: the forward passes of one number follow from those of the number before by a max-plus map that is constant in the
/// steady state (0 <= a < m - p). As soon as all stages have moved on by the same time over some period, they do so for ever, and
/// what each stage does when its forward passes end is known. The passes of warm-up and cool-down, all of one direction, are flow shops of
/// equal jobs, which have closed forms. Needs m >= p; equal to `pipeline_seconds`, which plays every pass (tests/planner/pipeline_test.cpp).

#include <cstdint>
#include <vector>

#include "planner/lanes.hpp"

namespace moeplan {

/// Passes of one stage, seconds: after a pass of the other direction, and after one of the same (without resharding weights are there
/// in the one case and gathered in the other).
struct StageSeconds {
  Four forward, backward, forward_again, backward_again;
};

/// From one number of the steady state to the next: what a stage's passes of both directions add to its own backward pass, and to the forward
/// pass of the stage before.
struct StageMoves {
  Four turn, follow;
};

/// Reusable room for the play.
struct PipelineRoom {
  std::vector<StageMoves> moves;
  std::vector<Four> forward, back;   ///< of the numbers played last, row after row
  std::vector<Four> ends, home;
};

/// Step time without the optimizer. `stages` in order, `exchange` between neighbours, `micro_batches` >= stages.
[[nodiscard]] Four pipeline_step(const std::vector<StageSeconds>& stages, const Four& exchange, std::int64_t micro_batches, PipelineRoom& room);

/// Never more than `pipeline_step`: the longest of the paths that stay with one stage.
[[nodiscard]] Four pipeline_floor(const std::vector<StageSeconds>& stages, const Four& exchange, std::int64_t micro_batches);

}  // namespace moeplan
