#pragma once
/// Shared-memory addresses as PTX wants them, and warp election.

#include <cstdint>

namespace moeplan::kernels::ptx {

/// 32-bit address in the shared window of this block.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// The same shared address as seen in block `rank` of the cluster.
__device__ __forceinline__ std::uint32_t map_to_rank(std::uint32_t address, std::uint32_t rank) {
    std::uint32_t mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

/// True in exactly one lane of a converged warp.
__device__ __forceinline__ bool elect_one() {
    std::uint32_t elected;
    asm volatile(
        "{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(elected));
    return elected != 0;
}

/// Rank of this block in its cluster (0 without one).
__device__ __forceinline__ std::uint32_t cluster_rank() {
    std::uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

} // namespace moeplan::kernels::ptx
