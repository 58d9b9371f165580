#pragma once
/// Peak memory of a rank, by walking the lifetimes of the buffers of its program. `stage_memory` is the closed form of the same
/// walk under 1F1B, for search: it looks at each slot once. A test holds the two equal.

#include <functional>
#include <map>
#include <span>

#include "sim/program/program.hpp"

namespace moeplan {

/// What the walk needs of one slot.
struct SlotMemory {
  const PassMemory* forward = nullptr;
  const PassMemory* backward = nullptr;
  const PassMemory* weight_backward = nullptr;   ///< split schedules
  std::array<Bytes, kMemoryCategories> kept{};
  std::array<Bytes, kMemoryCategories> put_off{};   ///< split schedules: between backward and weight_backward
  std::int32_t chunk = 0;     ///< virtual stage on this rank
  Bytes gathered{};           ///< unsharded weights while it runs
  Bytes carried_gradients{};  ///< accumulated gradients of the carried values that reach it
  Bytes unreduced{};          ///< its weight gradients until they are reduced
  Staged staged{};            ///< of what its calls to other ranks hold all the time
  Bytes host{};               ///< kept in host memory, per micro-batch in flight
  bool has_backward = true;
};

/// A virtual stage: slots [first, end).
struct ChunkMemory {
  std::int32_t first = 0, end = 0;
  Bytes carried{};            ///< per micro-batch in flight
  bool ends_model = false;
};

/// Everything that walking a rank's instances needs.
struct ListMemory {
  std::vector<SlotMemory> slots;
  std::vector<ChunkMemory> chunks;
  StateBytes state;
  std::function<const PassMemory&(std::int32_t forward_slot, std::int32_t slot)> pair;   ///< two passes side by side
};

/// Peak of a list of instances by category.
[[nodiscard]] MemoryBreakdown list_memory(std::span<const Instance> instances, const ListMemory& of, const Problem& problem, const Plan& plan);

/// Memory of blocks side by side, found once per pair.
class PairMemory {
 public:
  explicit PairMemory(const Runtime& runtime) : runtime_(runtime) {}
  const PassMemory& of(const Block& forward, const Block& backward);

 private:
  Runtime runtime_;
  std::map<std::pair<const Block*, const Block*>, PassMemory> known_;
};

/// Everything of a stage under 1F1B that its peak depends on.
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
[[nodiscard]] SlotMemory with_passes(SlotMemory slot, const PassMemory& forward, const PassMemory& backward, const std::array<Bytes, kMemoryCategories>& kept, const Staged& staged);
[[nodiscard]] SlotMemory with_passes(SlotMemory slot, const BlockMemory& block);

/// The buffer that slots share, and the ways of all.
[[nodiscard]] Bytes staged_by(std::span<const SlotMemory> slots, const Plan& plan);

/// Bytes that do not move during a step: states, communicators, context. The allocator's reserve is added to the peak.
[[nodiscard]] MemoryBreakdown standing_memory(const StateBytes& state, const Problem& problem, const Plan& plan);
/// Adds what the allocator reserves beyond what is allocated (context and communicators are outside it).
void add_allocator_reserve(MemoryBreakdown& memory, const Runtime& runtime);

[[nodiscard]] MemoryBreakdown stage_memory(const StageMemory& stage, const Problem& problem, const Plan& plan);

/// Peak memory of one rank over a step, by category, from its lowered program.
[[nodiscard]] MemoryBreakdown memory(const Program& program, const Problem& problem, const Plan& plan);

}  // namespace moeplan
