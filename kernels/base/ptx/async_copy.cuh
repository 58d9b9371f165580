#pragma once
/// Copies that run beside the threads: cp.async (16 bytes, any alignment of rows), bulk copies (contiguous), and
/// tensor copies (tiles of a tensor map, see kernels/base/tma.hpp).

#include "kernels/base/ptx/mbarrier.cuh"

#include <cuda.h>

namespace moeplan::kernels::ptx {

/// 16 bytes global to shared, past L1. With `valid` false the destination is filled with zeros and nothing is read.
__device__ __forceinline__ void copy_16(std::uint32_t shared, const void* global, bool valid = true) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `pending` committed groups of this thread are in flight.
template <int pending>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// Contiguous bytes (multiple of 16, both sides 16-byte aligned) global to shared; `barrier` counts the bytes.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, std::uint32_t bytes, Barrier* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
/// Contiguous bytes shared to global; joins this thread's bulk group.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, std::uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}
/// Adds fp32 values from shared to global memory; the order among blocks is not fixed.
__device__ __forceinline__ void bulk_add_f32(float* global, const void* shared, std::uint32_t bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until at most `pending` bulk groups still read shared memory (it may be overwritten then).
template <int pending>
__device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
/// Waits until at most `pending` bulk groups are unfinished (their writes are visible then).
template <int pending>
__device__ __forceinline__ void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void tensor_prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Tile of a 2-D tensor to shared memory; coordinates fastest first. Elements outside the tensor arrive as zeros and
/// count as delivered bytes.
__device__ __forceinline__ void tensor_load_2d(void* shared, const CUtensorMap* map, int x, int y, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
        : "memory");
}
__device__ __forceinline__ void tensor_load_3d(void* shared, const CUtensorMap* map, int x, int y, int z,
                                               Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
}
__device__ __forceinline__ void tensor_load_4d(void* shared, const CUtensorMap* map, int x, int y, int z, int w,
                                               Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}
/// The same tile to the same shared offset of every block in `ranks` (bit mask); each block's own barrier, at the same
/// offset, counts the bytes it received.
__device__ __forceinline__ void tensor_load_2d_multicast(void* shared, const CUtensorMap* map, int x, int y,
                                                         std::uint16_t ranks, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(ranks)
        : "memory");
}
__device__ __forceinline__ void tensor_load_4d_multicast(void* shared, const CUtensorMap* map, int x, int y, int z,
                                                         int w, std::uint16_t ranks, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "h"(ranks)
        : "memory");
}

/// Tile from shared memory to a 2-D tensor; elements outside the tensor are not written. Joins the bulk group.
__device__ __forceinline__ void tensor_store_2d(const CUtensorMap* map, const void* shared, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(shared_address(shared)), "r"(x), "r"(y)
                 : "memory");
}
__device__ __forceinline__ void tensor_store_3d(const CUtensorMap* map, const void* shared, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

} // namespace moeplan::kernels::ptx
