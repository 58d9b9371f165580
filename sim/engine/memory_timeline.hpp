#pragma once
/// A rank's memory through the step: the buffers of its program with the times at which the engine played their users. What is
/// counted and when follows sim/memory/memory.hpp, so that the peak is that of `memory()`, or less where a gather came late.

#include <span>

#include "sim/engine/engine.hpp"
#include "sim/memory/memory.hpp"

namespace moeplan {

/// Bytes of one category held for a while.
struct MemoryBlock {
  MemoryCategory category = MemoryCategory::activations;
  Bytes bytes{};
  Picoseconds from = 0, until = 0;
  std::int32_t alloc_order = 0, free_order = 0;   ///< order of what happens at one instant
  std::int32_t name = 0;                          ///< index into MemoryTimeline::names
};

struct MemoryTimeline {
  std::int64_t rank = 0;
  std::vector<MemoryBlock> blocks;
  std::vector<std::string> names;
  MemoryBreakdown peak;                           ///< with the allocator's reserve
  Picoseconds peak_at = 0;
};

/// `job` and `played` hold `program` as that of position `rank`.
[[nodiscard]] MemoryTimeline memory_timeline(const Program& program, const Problem& problem, const Plan& plan, const Job& job, const Played& played, std::int32_t rank);

/// A block comes or goes.
struct MemoryChange {
  Picoseconds at = 0;
  std::int32_t order = 0, block = 0;   ///< block: index into MemoryTimeline::blocks
  bool comes = true;
};
/// By time, then order.
[[nodiscard]] std::vector<MemoryChange> changes(const MemoryTimeline& timeline);

}  // namespace moeplan
