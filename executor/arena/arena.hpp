#pragma once
/// The arena of a rank's activations, gradients in flight and gathered weights: one block of memory in which every
/// buffer of the program has its place for the time in which somebody reads it. The layout is made once, from the
/// lifetimes of the lowered program. Without pipeline one micro-batch at a time is between forward and backward: one is
/// laid out and the others re-use it. A stage of several has more, so all are laid out.

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/spec/plan.hpp"
#include "core/spec/results.hpp"
#include "executor/ranks/place.hpp"
#include "sim/program/staging.hpp"

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
  std::vector<std::int32_t>
      values;  ///< per value of the block: its buffer, or that of the value it views; -1: not there
  std::vector<std::int32_t> workspace;  ///< per call (those put off behind the others): -1 without
  std::int64_t first = 0, last = -1;    ///< its calls, but for those put off
  Bytes alive{};                        ///< most bytes of buffers alive together in them
};

/// A gradient that joins another after a slot's backward: what reached a stored block or shared value from a later
/// slot.
struct CarriedSum {
  std::int32_t from = -1, to = -1;  ///< buffers; the sum is in `to`
};

struct SlotPlacement {
  PassPlacement forward, backward;
  std::vector<CarriedSum> sums;  ///< after the backward, in order
  std::map<ValueId, std::int32_t> host;  ///< where kept values wait in host memory
};

/// What crosses the ends of a virtual stage: the stream first, then the stored blocks.
struct ChunkEnds {
  std::vector<std::int32_t> entering, entering_gradients;  ///< received from the stage before; sent back to it
  std::vector<std::int32_t> leaving, leaving_gradients;    ///< sent to the next stage; received from it
};

/// A micro-batch's buffers.
struct LanePlacement {
  std::vector<SlotPlacement> slots;
  std::vector<ChunkEnds> ends;  ///< per virtual stage of this rank
};

struct ArenaPlan {
  std::vector<ArenaBuffer> buffers;
  std::vector<LanePlacement> lanes;    ///< one for all micro-batches, or one for each
  std::vector<std::int32_t> gathered;  ///< per instance: buffer that a gather fills; -1
  std::vector<std::int32_t> chunk;     ///< per instance: the virtual stage whose end a message crosses; -1
  std::vector<Bytes> alive;            ///< per instance: most bytes of buffers alive together in its calls; of further micro-batches that of the lane
  [[nodiscard]] const LanePlacement& lane(std::int32_t micro_batch) const {
    return lanes.size() == 1 ? lanes.front() : lanes[static_cast<std::size_t>(micro_batch)];
  }
  Bytes size{};  ///< of the arena, gaps included
  Bytes peak{};  ///< most bytes of buffers alive together
  std::array<Bytes, kMemoryCategories> at_peak{};
  std::string peak_at;
  std::vector<ArenaBuffer> host;  ///< kept values in host memory, from their copy out to their copy back
  Bytes host_size{};
};

/// In which type frozen weights come from host memory for their slot's gather; empty: they lie on the device.
using FetchedType = std::function<DType(const Block&, WeightId)>;
/// Workspace that the backend wants for a call of a block; empty: the contract's.
using CallWorkspace = std::function<Bytes(const Block&, const BlockNode&)>;

/// Whether what arrives at an instance comes in one call with the next one: nothing runs between them.
[[nodiscard]] bool goes_with_next(const Program& program, std::size_t at);

/// Lays out a program. Throws InputError for what it has no place for: messages of other values than the stream
/// and stored blocks.
[[nodiscard]] ArenaPlan plan_arena(const Program& program, const Problem& problem, const HeldType& held,
                                   const Parallelism& parallelism = {}, const CallWorkspace& scratch = {},
                                   const FetchedType& fetched = {});

/// Gives each buffer an offset, a multiple of 256 bytes, such that no two that are alive together overlap. Returns the size of the arena, which is
/// at least the most bytes alive together; what it is above that are gaps (executor/arena/place.cpp says how they are kept small).
[[nodiscard]] Bytes place_buffers(std::vector<ArenaBuffer>& buffers);

}  // namespace moeplan
