#pragma once
/// Peak memory of a rank, by walking the lifetimes of the buffers of its program. `stage_memory` is the closed form of the same
/// walk, for search: it looks at each slot once. A test holds the two equal.

#include <span>

#include "sim/program/program.hpp"

namespace moeplan {

/// What the walk needs of one slot.
struct SlotMemory {
  const PassMemory* forward = nullptr;
  const PassMemory* backward = nullptr;
  std::array<Bytes, kMemoryCategories> kept{};
  Bytes gathered{};           ///< unsharded weights while it runs
  Bytes carried_gradients{};  ///< accumulated gradients of the carried values that reach it
  Bytes unreduced{};          ///< its weight gradients until they are reduced
  bool has_backward = true;
};

/// Everything of a stage that its peak depends on.
struct StageMemory {
  std::vector<SlotMemory> slots;
  StateBytes state;            ///< all slots and what is only resident
  Bytes carried{};             ///< per micro-batch in flight
  std::int64_t in_flight = 1;
  std::int64_t micro_batches = 1;
  std::int64_t prefetch = 1;
  bool reshard = true;         ///< gathered copies of the forward pass are dropped
  bool last_stage = true;
};

/// All but the passes and what is kept, which depend on the load.
[[nodiscard]] SlotMemory slot_memory(const Block& block, const SlotSharding& sharding);
/// Fills those in; the passes must outlive the result.
[[nodiscard]] SlotMemory with_passes(SlotMemory slot, const PassMemory& forward, const PassMemory& backward, const std::array<Bytes, kMemoryCategories>& kept);

/// Bytes that do not move during a step: states, communicators, context. The allocator's reserve is added to the peak.
[[nodiscard]] MemoryBreakdown standing_memory(const StateBytes& state, const Runtime& runtime, const Parallelism& parallelism);
/// Adds what the allocator reserves beyond what is allocated (context and communicators are outside it).
void add_allocator_reserve(MemoryBreakdown& memory, const Runtime& runtime);

[[nodiscard]] MemoryBreakdown stage_memory(const StageMemory& stage, const Runtime& runtime, const Parallelism& parallelism);

/// Peak memory of one rank over a step, by category, from its lowered program.
[[nodiscard]] MemoryBreakdown memory(const Program& program, const Problem& problem, const Plan& plan);

}  // namespace moeplan
