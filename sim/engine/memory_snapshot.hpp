#pragma once
/// Memory timelines in the shape of PyTorch's memory snapshot (`segments`, `device_traces` with alloc and free_completed events), which
/// pytorch.org/memory_viz and torch.cuda._memory_viz draw. As JSON, or as the pickle that those read: written with eleven opcodes of
/// protocol 2 for dict, list, str and int, so that loading it can run nothing. moeplan reads no pickles.

#include "sim/engine/memory_timeline.hpp"

namespace moeplan {

[[nodiscard]] std::string memory_snapshot(std::span<const MemoryTimeline> ranks);
[[nodiscard]] std::string memory_snapshot_pickle(std::span<const MemoryTimeline> ranks);

}  // namespace moeplan
