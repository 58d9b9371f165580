#pragma once
/// Time of one pass of a stage in closed form: its slots compute one after another while their weights are gathered `prefetch` slots
/// ahead on a second lane, on which gradients are reduced too.
///
/// With x the end of compute so far and d how far the second lane is ahead of it, one slot of compute time c, reduction r and the gather
/// g of the slot after it does (prefetch 1)
///     g > 0:  x += max(c, d + g),  d = r          g = 0:  x += c,  d = max(d - c, 0) + r
/// and (prefetch 0), g now its own gather,
///     g > 0:  x += d + g + c,      d = r          g = 0:  as above,
/// so a run of equal slots is one product. Equal to the engine's dependencies (tests/planner/stage_pass_test.cpp holds it to the walk).

#include <cstdint>
#include <span>

#include "planner/lanes.hpp"

namespace moeplan {

/// `count` slots of one kind in a row.
struct SlotRun {
  std::int32_t kind = 0;
  std::int32_t count = 0;
  bool operator==(const SlotRun&) const = default;
};

/// What the passes of a slot take.
struct SlotSeconds {
  Four forward, backward;
  Four gather, reduce;
};

struct PassOptions {
  bool gathers = true;          ///< weights are gathered in this pass
  bool first_is_there = false;  ///< all but those of its first slot
  std::int64_t prefetch = 1;    ///< slots ahead; beyond 1 the pass is walked slot by slot
};

/// Forward pass over runs in model order. Seconds.
[[nodiscard]] Four forward_seconds(std::span<const SlotRun> runs, std::span<const SlotSeconds> kinds, PassOptions options);
/// Backward pass: the runs taken from the last to the first, each slot reduced after it.
[[nodiscard]] Four backward_seconds(std::span<const SlotRun> runs, std::span<const SlotSeconds> kinds, PassOptions options);

}  // namespace moeplan
