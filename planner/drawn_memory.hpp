#pragma once
/// Peak memory of a pipeline stage's expert ranks when each rank has rows of its own: the walk of sim/memory over the issued
/// instances, all ranks of the group at once, in total bytes.

#include <array>
#include <span>

#include "sim/memory/memory.hpp"

namespace moeplan {

/// Where a factor lies among those at which blocks were lowered: between `low` and `low + 1`; share below 0 or above 1 outside.
struct Between {
  std::size_t low = 0;
  double share = 0;
};
[[nodiscard]] inline Between between_factors(double factor, std::span<const double> factors) {
  std::size_t i = 0;
  while (i + 2 < factors.size() && factor > factors[i + 1]) ++i;
  return {i, (factor - factors[i]) / (factors[i + 1] - factors[i])};
}

/// Bytes of a block's passes and of what its exchanges hold, at each factor (one entry where nothing is routed).
struct KindBytes {
  std::vector<double> forward, backward, weight_backward, kept, put_off, buffer, ways;
  void add(const BlockMemory& memory);
};

struct SlotBytes {
  const KindBytes* kind = nullptr;
  SlotMemory fixed;           ///< gathered weights, carried gradients, gradients, the buffer that these pass through; its passes are not used
  std::int64_t moe = -1;      ///< place among the MoE layers; -1: nothing is routed
};

struct StageBytes {
  std::vector<SlotBytes> slots;
  std::vector<ChunkMemory> chunks;
  std::vector<Instance> instances;
  double standing = 0;            ///< states
  double outside_allocator = 0;   ///< context, communicators
  double replicas = 0;            ///< states of extra expert slots
  double kept_ways = 1;           ///< micro-batches that hold the ways of tokens that go once
};

/// Rows of each rank over the mean, by MoE layer and micro-batch (those beyond `distinct` repeat).
struct DrawnRows {
  std::int64_t ranks = 1, layers = 0, distinct = 1;
  std::vector<double> of;         ///< layer x micro-batch x rank; empty: one rank, balanced
  double buffer = 0;              ///< rows that buffers of a running block hold at least: a capacity whose counts no host knows
};

/// Bytes of the fullest rank, with what the allocator reserves beyond. Passes side by side count as the sum of the two.
[[nodiscard]] double drawn_peak(const StageBytes& stage, const DrawnRows& rows, double allocator_overhead, std::span<const double> factors);

}  // namespace moeplan
