#pragma once
/// mbarriers in shared memory: phases counted by arrivals and by bytes that bulk copies have delivered.
/// A barrier starts in phase 0; `wait(barrier, parity)` returns once the phase of that parity has completed, so a
/// consumer starts with parity 0 and a producer that may fill a fresh buffer at once starts with parity 1.

#include "kernels/base/ptx/address.cuh"

namespace moeplan::kernels::ptx {

using Barrier = std::uint64_t;

/// One thread initialises; follow with `fence_barrier_init` and a block or cluster barrier.
__device__ __forceinline__ void barrier_init(Barrier* barrier, std::uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// The same where `condition`, without a branch: one between a wgmma and its wait makes the compiler wait at once.
__device__ __forceinline__ void barrier_arrive_if(bool condition, Barrier* barrier) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(
                     shared_address(barrier)),
                 "r"(static_cast<int>(condition))
                 : "memory");
}

/// Arrives at the same barrier in block `rank` of the cluster. Enough to hand back a buffer that only bulk copies fill;
/// a release to the cluster costs a memory fence per arrival.
__device__ __forceinline__ void barrier_arrive_at_rank(Barrier* barrier, std::uint32_t rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(
                     map_to_rank(shared_address(barrier), rank))
                 : "memory");
}

/// Arrives and announces `bytes` that bulk copies will deliver in this phase.
__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

/// Blocks until the phase of `parity` has completed.
__device__ __forceinline__ void barrier_wait(Barrier* barrier, std::uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
        "@done bra DONE_%=;\n"
        "bra WAIT_%=;\n"
        "DONE_%=:\n"
        "}\n" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

/// The same, with the acquire reaching ordinary writes of other blocks of the cluster. It invalidates the L1 cache at
/// every wait: waiting for bulk copies or for freed buffers needs only `barrier_wait`.
__device__ __forceinline__ void barrier_wait_cluster(Barrier* barrier, std::uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT_%=:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1, 0x989680;\n"
        "@done bra DONE_%=;\n"
        "bra WAIT_%=;\n"
        "DONE_%=:\n"
        "}\n" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

/// True if the phase of `parity` has completed; does not block.
__device__ __forceinline__ bool barrier_test(Barrier* barrier, std::uint32_t parity) {
    std::uint32_t done;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return done != 0;
}

/// This thread's earlier `cp.async` copies arrive (once, without raising the pending count) when they have landed.
__device__ __forceinline__ void barrier_arrive_after_async_copies(Barrier* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// Stage index and parity of a ring of barriers, advanced together.
template <int stages>
struct RingPosition {
    std::uint32_t stage = 0;
    std::uint32_t parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

} // namespace moeplan::kernels::ptx
