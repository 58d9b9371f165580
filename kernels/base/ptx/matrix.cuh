#pragma once
/// Warp-level matrix fragments: ldmatrix, stmatrix, and mma.sync m16n8k16 (also the sm_80 path).
///
/// Fragment layout of a 8 x 8 matrix of 16-bit values: lane l holds row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1.
/// mma m16n8k16: A = {rows 0-7 | rows 8-15} x {k 0-7, k 8-15} in the order (top, k0), (bottom, k0), (top, k8),
/// (bottom, k8); B = {k 0-7, k 8-15} x 8 columns; C rows l / 4 (c0, c1) and l / 4 + 8 (c2, c3).

#include "kernels/base/ptx/address.cuh"

namespace moeplan::kernels::ptx {

/// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrix_x4(std::uint32_t (&r)[4], std::uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}
__device__ __forceinline__ void load_matrix_x4_transposed(std::uint32_t (&r)[4], std::uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}
__device__ __forceinline__ void load_matrix_x2(std::uint32_t (&r)[2], std::uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared)
                 : "memory");
}
__device__ __forceinline__ void load_matrix_x2_transposed(std::uint32_t (&r)[2], std::uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared)
                 : "memory");
}

/// The inverse of load_matrix (sm_90).
__device__ __forceinline__ void store_matrix_x4(std::uint32_t shared, const std::uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}
__device__ __forceinline__ void store_matrix_x4_transposed(std::uint32_t shared, const std::uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
__device__ __forceinline__ void store_matrix_x2_transposed(std::uint32_t shared, const std::uint32_t (&r)[2]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared), "r"(r[0]), "r"(r[1])
                 : "memory");
}

/// c += a b, bf16 inputs, fp32 accumulation.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// c += a b, tf32 inputs (fp32 bits; the low 13 mantissa bits are ignored), m16n8k8. A: (row, k), lane l holds rows
/// l / 4 and + 8, k l % 4 and + 4; B: k l % 4 and + 4, column l / 4.
__device__ __forceinline__ void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Two floats to packed bf16, round to nearest even; `low` goes to the low half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
    std::uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

} // namespace moeplan::kernels::ptx
