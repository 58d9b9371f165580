#pragma once
/// What the communicators of a rank hold on its device. NCCL gives each communicator memory of its own, whatever else uses the same links: a
/// little for each channel when it is made (the runtime's `communicator`), buffers for the two neighbours of its rings at its first collective,
/// and buffers for each rank that it sends to by itself (grouped sends to experts, messages between stages) at the first such call. Measured
/// on two H200 (bench/results/multi_gpu_h200.md), where each channel's buffers are 12 MiB, less only by NCCL_BUFFSIZE.

#include "core/spec/plan.hpp"

namespace moeplan {

/// Of a plan's groups: one communicator for each set of ranks, all of them with collectives (the order of calls is compared over every one).
/// Of other runtimes than this project's `communicator` is the whole, once for each degree above one. 0 for one rank.
[[nodiscard]] Bytes communicator_memory(const Problem& problem, const Parallelism& parallelism, ContextExchange exchange);

}  // namespace moeplan
