#pragma once
/// Warpgroup matrix multiply (sm_90a): D[64, n] (+)= A[64, 16] B[16, n], bf16 inputs, fp32 accumulators.
///
/// A warpgroup is four consecutive warps. Accumulator layout: warp w of the group holds rows 16 w to 16 w + 15; in it,
/// lane l holds d[4 j + 0, 1] at row l / 4, columns 8 j + 2 (l % 4) + {0, 1}, and d[4 j + 2, 3] eight rows below.
/// A from registers uses the m16n8k16 fragment of matrix.cuh per warp.
///
/// Descriptors (128-byte swizzle, tile on a 1024-byte boundary), strides in bytes:
///  - K-major (the contraction index is contiguous, 64 bf16 per 128-byte row): `stride` = 1024, from one group of 8 rows
///    to the next; a step of 16 along K adds 32 bytes to the address; `leading` is not used.
///  - MN-major (the other index is contiguous, 64 of it per 128-byte row, one row per k): `stride` = 1024, from one
///    group of 8 k to the next; `leading` = from one block of 64 along MN to the next; a step of 16 along K adds 2048.

#include "kernels/base/ptx/address.cuh"

namespace moeplan::kernels::ptx {

/// Descriptor of an operand in shared memory with the 128-byte swizzle.
__device__ __forceinline__ std::uint64_t wgmma_descriptor(std::uint32_t shared, std::uint32_t stride = 1024,
                                                          std::uint32_t leading = 16) {
    return static_cast<std::uint64_t>((shared & 0x3ffff) >> 4) | (static_cast<std::uint64_t>(leading >> 4) << 16) |
           (static_cast<std::uint64_t>(stride >> 4) << 32) | (1ull << 62);
}
/// Descriptor moved by `bytes`.
__device__ __forceinline__ std::uint64_t wgmma_advance(std::uint64_t descriptor, std::uint32_t bytes) {
    return descriptor + (bytes >> 4);
}

/// Before the first wgmma of a batch, and after accumulators or A registers were touched.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `pending` committed groups are unfinished.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
/// Tells the compiler that `d` may have changed, so that it keeps reads behind the wait; of operands in registers, so
/// that it makes them before `wgmma_begin`.
template <int count>
__device__ __forceinline__ void wgmma_touch(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int count>
__device__ __forceinline__ void wgmma_touch(std::uint32_t (&a)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

/// Which index of an operand is contiguous in shared memory.
enum class Major : int { k = 0, mn = 1 };

/// The instruction for width n (a multiple of 8 up to 256; instances: 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128,
/// 160, 192, 256). `accumulate` false overwrites d.
template <int n>
struct Wgmma;

#define MOEPLAN_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MOEPLAN_F8(i) MOEPLAN_F4(i), MOEPLAN_F4(i + 4)
#define MOEPLAN_F16(i) MOEPLAN_F8(i), MOEPLAN_F8(i + 8)
#define MOEPLAN_F32(i) MOEPLAN_F16(i), MOEPLAN_F16(i + 16)
#define MOEPLAN_F64(i) MOEPLAN_F32(i), MOEPLAN_F32(i + 32)

#define MOEPLAN_R4 "%0, %1, %2, %3"
#define MOEPLAN_R8 MOEPLAN_R4 ", %4, %5, %6, %7"
#define MOEPLAN_R12 MOEPLAN_R8 ", %8, %9, %10, %11"
#define MOEPLAN_R16 MOEPLAN_R12 ", %12, %13, %14, %15"
#define MOEPLAN_R20 MOEPLAN_R16 ", %16, %17, %18, %19"
#define MOEPLAN_R24 MOEPLAN_R20 ", %20, %21, %22, %23"
#define MOEPLAN_R28 MOEPLAN_R24 ", %24, %25, %26, %27"
#define MOEPLAN_R32 MOEPLAN_R28 ", %28, %29, %30, %31"
#define MOEPLAN_R40 MOEPLAN_R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MOEPLAN_R48 MOEPLAN_R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MOEPLAN_R56 MOEPLAN_R48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define MOEPLAN_R64 MOEPLAN_R56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define MOEPLAN_R80 \
    MOEPLAN_R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define MOEPLAN_R96 \
    MOEPLAN_R80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MOEPLAN_R128                                                                                       \
    MOEPLAN_R96                                                                                            \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
    "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// Operand numbers after the accumulators: SS has A, B, accumulate; RS has four A registers, B, accumulate.
#define MOEPLAN_WGMMA(N, COUNT, REGISTERS, OUTPUTS, P0, P1, P2, P3, P4, P5, P6)                                          \
    template <>                                                                                                        \
    struct Wgmma<N> {                                                                                                  \
        static constexpr int accumulators = COUNT;                                                                     \
        /* A and B from shared memory. */                                                                              \
        template <Major a_major = Major::k, Major b_major = Major::k>                                                  \
        static __device__ __forceinline__ void ss(float (&d)[COUNT], std::uint64_t a, std::uint64_t b,                 \
                                                  bool accumulate) {                                                   \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P2 ", 0;\n"                                              \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGISTERS "}, %" P0 ", %" P1     \
                         ", p, 1, 1, %" P3 ", %" P4 ";\n}\n"                                                           \
                         : OUTPUTS                                                                                     \
                         : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(a_major)),          \
                           "n"(static_cast<int>(b_major)));                                                            \
        }                                                                                                              \
        /* A from registers, B from shared memory. */                                                                  \
        template <Major b_major = Major::k>                                                                            \
        static __device__ __forceinline__ void rs(float (&d)[COUNT], const std::uint32_t (&a)[4], std::uint64_t b,     \
                                                  bool accumulate) {                                                   \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P5 ", 0;\n"                                              \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGISTERS "}, {%" P0 ", %" P1    \
                         ", %" P2 ", %" P3 "}, %" P4 ", p, 1, 1, %" P6 ";\n}\n"                                           \
                         : OUTPUTS                                                                                     \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),      \
                           "n"(static_cast<int>(b_major)));                                                            \
        }                                                                                                              \
    }

MOEPLAN_WGMMA(8, 4, MOEPLAN_R4, MOEPLAN_F4(0), "4", "5", "6", "7", "8", "9", "10");
MOEPLAN_WGMMA(16, 8, MOEPLAN_R8, MOEPLAN_F8(0), "8", "9", "10", "11", "12", "13", "14");
#define MOEPLAN_OUT12 MOEPLAN_F8(0), MOEPLAN_F4(8)
MOEPLAN_WGMMA(24, 12, MOEPLAN_R12, MOEPLAN_OUT12, "12", "13", "14", "15", "16", "17", "18");
MOEPLAN_WGMMA(32, 16, MOEPLAN_R16, MOEPLAN_F16(0), "16", "17", "18", "19", "20", "21", "22");
#define MOEPLAN_OUT20 MOEPLAN_F16(0), MOEPLAN_F4(16)
MOEPLAN_WGMMA(40, 20, MOEPLAN_R20, MOEPLAN_OUT20, "20", "21", "22", "23", "24", "25", "26");
#define MOEPLAN_OUT24 MOEPLAN_F16(0), MOEPLAN_F8(16)
MOEPLAN_WGMMA(48, 24, MOEPLAN_R24, MOEPLAN_OUT24, "24", "25", "26", "27", "28", "29", "30");
#define MOEPLAN_OUT28 MOEPLAN_F16(0), MOEPLAN_F8(16), MOEPLAN_F4(24)
MOEPLAN_WGMMA(56, 28, MOEPLAN_R28, MOEPLAN_OUT28, "28", "29", "30", "31", "32", "33", "34");
MOEPLAN_WGMMA(64, 32, MOEPLAN_R32, MOEPLAN_F32(0), "32", "33", "34", "35", "36", "37", "38");
#define MOEPLAN_OUT40 MOEPLAN_F32(0), MOEPLAN_F8(32)
MOEPLAN_WGMMA(80, 40, MOEPLAN_R40, MOEPLAN_OUT40, "40", "41", "42", "43", "44", "45", "46");
#define MOEPLAN_OUT48 MOEPLAN_F32(0), MOEPLAN_F16(32)
MOEPLAN_WGMMA(96, 48, MOEPLAN_R48, MOEPLAN_OUT48, "48", "49", "50", "51", "52", "53", "54");
#define MOEPLAN_OUT56 MOEPLAN_F32(0), MOEPLAN_F16(32), MOEPLAN_F8(48)
MOEPLAN_WGMMA(112, 56, MOEPLAN_R56, MOEPLAN_OUT56, "56", "57", "58", "59", "60", "61", "62");
MOEPLAN_WGMMA(128, 64, MOEPLAN_R64, MOEPLAN_F64(0), "64", "65", "66", "67", "68", "69", "70");
#define MOEPLAN_OUT80 MOEPLAN_F64(0), MOEPLAN_F16(64)
MOEPLAN_WGMMA(160, 80, MOEPLAN_R80, MOEPLAN_OUT80, "80", "81", "82", "83", "84", "85", "86");
#define MOEPLAN_OUT96 MOEPLAN_F64(0), MOEPLAN_F32(64)
MOEPLAN_WGMMA(192, 96, MOEPLAN_R96, MOEPLAN_OUT96, "96", "97", "98", "99", "100", "101", "102");
#define MOEPLAN_OUT128 MOEPLAN_F64(0), MOEPLAN_F64(64)
MOEPLAN_WGMMA(256, 128, MOEPLAN_R128, MOEPLAN_OUT128, "128", "129", "130", "131", "132", "133", "134");

#undef MOEPLAN_OUT12
#undef MOEPLAN_OUT20
#undef MOEPLAN_OUT24
#undef MOEPLAN_OUT28
#undef MOEPLAN_OUT40
#undef MOEPLAN_OUT48
#undef MOEPLAN_OUT56
#undef MOEPLAN_OUT80
#undef MOEPLAN_OUT96
#undef MOEPLAN_OUT128
#undef MOEPLAN_WGMMA
#undef MOEPLAN_R4
#undef MOEPLAN_R8
#undef MOEPLAN_R12
#undef MOEPLAN_R16
#undef MOEPLAN_R20
#undef MOEPLAN_R24
#undef MOEPLAN_R28
#undef MOEPLAN_R32
#undef MOEPLAN_R40
#undef MOEPLAN_R48
#undef MOEPLAN_R56
#undef MOEPLAN_R64
#undef MOEPLAN_R80
#undef MOEPLAN_R96
#undef MOEPLAN_R128
#undef MOEPLAN_F4
#undef MOEPLAN_F8
#undef MOEPLAN_F16
#undef MOEPLAN_F32
#undef MOEPLAN_F64

} // namespace moeplan::kernels::ptx
