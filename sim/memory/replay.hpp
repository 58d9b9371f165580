#pragma once
/// Reserved memory of a rank: the buffers of its program, in the order in which they come and go, played through
/// PyTorch's caching allocator. Rounding, segments that fit nothing else and holes between long-lived buffers follow
/// from it; nothing is a share.

#include "sim/memory/allocator.hpp"
#include "sim/program/program.hpp"

namespace moeplan {

struct ReplayedPeak {
  Bytes allocated{};     ///< max_memory_allocated
  Bytes reserved{};      ///< max_memory_reserved
  bool refused = false;  ///< the capacity of the options did not hold it, unused segments given back
};

/// Two steps are played: the first leaves the segments that the second finds. Of many micro-batches those that fill the
/// pipeline and two more. Context and communicators lie outside the allocator and are not in it.
[[nodiscard]] ReplayedPeak replay(const Program& program, const Problem& problem, const Plan& plan,
                                  CachingAllocator::Options options = {});

}  // namespace moeplan
