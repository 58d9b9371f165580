#pragma once
/// Fences, cluster and named barriers, register reallocation, and dependent launch.

#include <cstdint>

namespace moeplan::kernels::ptx {

/// Orders this thread's ordinary shared-memory accesses before later ones by wgmma or bulk copies.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Makes mbarrier initialisation visible to the cluster and to bulk copies.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// All threads of all blocks of the cluster arrive, then wait.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Barrier `id` (1 to 15; 0 is __syncthreads) among `threads` threads, a multiple of 32.
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Arrives at a named barrier without waiting.
__device__ __forceinline__ void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Gives registers back to (or takes them from) the block's pool; a whole warpgroup calls it. Multiple of 8, 24 to 240.
template <int registers>
__device__ __forceinline__ void registers_release() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void registers_acquire() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/// Programmatic dependent launch: the next kernel of the stream may start its preamble.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
/// Programmatic dependent launch: waits until the previous kernel's writes are visible. Without the launch attribute
/// it returns at once.
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

} // namespace moeplan::kernels::ptx
