#pragma once
/// How many multiprocessors communication kernels hold while they run. NCCL gives each of its channels a block, and a block stays on one multiprocessor.
///
/// Its channels follow from the topology: a ring has two for each NVLink, 24 at most (H100, H200 and A100; 16 on H800, whose wires are cut to 8), two between devices
/// that only PCIe joins, two for each NIC of a node where it leaves it. Blackwell takes 16 at most by default since NCCL 2.28. Sends have the next power of
/// two: 32 in a node of H200, 16 between nodes; to one rank over a network 2.
/// Measured: 24 and 32 on two H200 with NCCL 2.28.3 (bench/results/multi_gpu_h200.md). In public logs: 24 and 32 in one p5.48xlarge, 16 and 16 between two
/// (aws-samples/aws-do-eks, nccl-test README); 16 and 16 in 8 H800 (NVIDIA/nccl, issue 892); 2 and 2 on desktops with two GPUs.
/// Other vendors' libraries: not known, none.

#include "core/spec/cluster.hpp"
#include "sim/cost/collectives.hpp"

namespace moeplan {

struct Channels {
  double collectives = 0, sends = 0;
};

/// Of groups whose outermost tier is `tier`.
[[nodiscard]] Channels nccl_channels(const ClusterSpec& cluster, std::size_t tier);

/// To one rank over a network (NCCL 2.28.9, ncclTopoGetNchannels: 2 a NIC).
inline constexpr double kNetworkChannels = 2;

/// Of the kernels of an expert exchange that sends a token once (DeepEP: its README, V3 report 3.2.2).
inline constexpr double kExchangeKernels = 20;

}  // namespace moeplan
