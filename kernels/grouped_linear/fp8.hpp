#pragma once
/// The order in which kernels read FP8 weights (E4M3, a byte a value).

#include <cstddef>
#include <cstdint>
#include <span>

namespace moeplan::kernels::grouped_linear::fp8 {

#if defined(__CUDACC__)
#define MOEPLAN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define MOEPLAN_HOST_DEVICE inline
#endif

/// Where column c of 16 lies: column 2 j + 8 b + e is byte b of half e of word j.
MOEPLAN_HOST_DEVICE constexpr int place(int c) { return c % 8 / 2 * 4 + c % 2 * 2 + c / 8; }

/// The way back: whole blocks of 16.
inline void restore(std::span<std::byte> arranged) {
    for (std::size_t at = 0; at + 16 <= arranged.size(); at += 16) {
        std::byte stored[16];
        for (int c = 0; c < 16; ++c) stored[c] = arranged[at + place(c)];
        for (int c = 0; c < 16; ++c) arranged[at + c] = stored[c];
    }
}

} // namespace moeplan::kernels::grouped_linear::fp8
