#pragma once
/// The arena of a rank's activations, gradients in flight and gathered weights: one block of memory in which every buffer of the
/// program has its place for the time in which somebody reads it. The layout is made once, from the lifetimes of the lowered program,
/// for one micro-batch; the others re-use it (one pipeline stage has one micro-batch between forward and backward).

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "core/spec/plan.hpp"
#include "core/spec/results.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

/// A buffer and the stretch of time, in calls, in which it is there: from `first` to `last`, both included.
struct ArenaBuffer {
  std::string name;
  Bytes bytes{};
  MemoryCategory category = MemoryCategory::activations;
  std::int64_t first = 0, last = 0;
  std::int64_t offset = 0;
};

/// The buffers of one pass of one slot.
struct PassPlacement {
  std::vector<std::int32_t> values;      ///< per value of the block: its buffer, or that of the value it views; -1: not there
  std::vector<std::int32_t> workspace;   ///< per call: -1 without
};

/// A gradient that joins another after a slot's backward: what reached a stored block or shared value from a later slot.
struct CarriedSum {
  std::int32_t from = -1, to = -1;   ///< buffers; the sum is in `to`
};

struct SlotPlacement {
  PassPlacement forward, backward;
  std::int32_t gathered = -1;            ///< unsharded or cast weights
  std::int32_t gathered_backward = -1;
  std::vector<CarriedSum> sums;          ///< after the backward, in order
};

struct ArenaPlan {
  std::vector<ArenaBuffer> buffers;
  std::vector<SlotPlacement> slots;
  Bytes size{};                          ///< of the arena, gaps included
  Bytes peak{};                          ///< most bytes of buffers alive together
  std::array<Bytes, kMemoryCategories> at_peak{};
  std::string peak_at;
};

/// Bytes of a tensor as the backend holds it.
using HeldBytes = std::function<Bytes(DType, const Shape&)>;

/// Lays out a program of one stage. Throws InputError for more than one.
[[nodiscard]] ArenaPlan plan_arena(const Program& program, const Problem& problem, const HeldBytes& held);

/// Gives each buffer an offset such that no two that are alive together overlap: largest first, each at the lowest place that is free for
/// its whole life. Returns the size of the arena.
[[nodiscard]] Bytes place_buffers(std::vector<ArenaBuffer>& buffers);

}  // namespace moeplan
