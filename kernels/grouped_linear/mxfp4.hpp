#pragma once
/// The MXFP4 number format: blocks of 32 values along the input width share a power-of-two scale; a value has 4 bits
/// (sign, 2 exponent, 1 mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6). Two values a byte, the even one in the low nibble; the
/// scale byte s means 2^(s - 127). Source: OCP Microscaling Formats v1.0; the byte order is gpt-oss's.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moeplan::kernels::grouped_linear::mxfp4 {

inline constexpr int block = 32;

/// The value of a nibble, without its block's scale.
inline double decode(int nibble) {
    constexpr double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return (nibble & 8) != 0 ? -magnitudes[nibble & 7] : magnitudes[nibble & 7];
}

/// values[count] of packed[count / 2] and scales[count / 32].
inline void dequantise(std::span<const std::uint8_t> packed, std::span<const std::uint8_t> scales,
                       std::span<double> values) {
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = decode(packed[i / 2] >> (i % 2 * 4) & 15) * std::ldexp(1.0, scales[i / block] - 127);
}

/// Nearest values (ties to the even code) under the scale floor(log2(largest)) - 2.
inline void quantise(std::span<const double> values, std::span<std::uint8_t> packed, std::span<std::uint8_t> scales) {
    for (std::size_t b = 0; b < values.size() / block; ++b) {
        double most = 0;
        for (int i = 0; i < block; ++i) most = std::max(most, std::abs(values[b * block + i]));
        const int exponent = most == 0 ? -127 : std::clamp(std::ilogb(most) - 2, -127, 127);
        scales[b] = static_cast<std::uint8_t>(exponent + 127);
        for (int i = 0; i < block; ++i) {
            const double v = std::ldexp(values[b * block + i], -exponent);
            int best = 0;
            for (int code = 1; code < 8; ++code) {
                const double gap = std::abs(std::abs(v) - decode(code)), before = std::abs(std::abs(v) - decode(best));
                if (gap < before || (gap == before && code % 2 == 0)) best = code;
            }
            const int nibble = best | (v < 0 ? 8 : 0);
            std::uint8_t& byte = packed[(b * block + i) / 2];
            byte = static_cast<std::uint8_t>(i % 2 == 0 ? nibble : byte | nibble << 4);
        }
    }
}

#if defined(__CUDACC__)
#define MOEPLAN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define MOEPLAN_HOST_DEVICE inline
#endif

/// A block's 32 codes, four words as stored, as the kernels read them: code 8 t + 2 j + e becomes code t of half e of
/// word j, and the bits of a half's four codes lie where one shift brings sign, exponent and mantissa to a bf16's.
MOEPLAN_HOST_DEVICE void arrange(const std::uint32_t (&stored)[4], std::uint32_t (&arranged)[4]) {
    for (int j = 0; j < 4; ++j) {
        arranged[j] = 0;
        for (int e = 0; e < 2; ++e)
            for (int t = 0; t < 4; ++t) {
                const std::uint32_t code = stored[t] >> (4 * (2 * j + e)) & 15, sign = code >> 3, number = code & 7;
                const int sign_at = t == 0 ? 15 : t == 1 ? 12 : t == 2 ? 14 : 13, number_at = t == 0 ? 6 : t == 1 ? 3 : t == 2 ? 0 : 9;
                arranged[j] |= (sign << sign_at | number << number_at) << (16 * e);
            }
    }
}

/// The way back: arranged[4 n], whole blocks.
inline void restore(std::span<std::uint32_t> arranged) {
    int from[128];
    for (int bit = 0; bit < 128; ++bit) {
        std::uint32_t one[4] = {}, to[4];
        one[bit / 32] = 1u << bit % 32;
        arrange(one, to);
        for (int j = 0; j < 4; ++j)
            if (to[j] != 0) from[bit] = 32 * j + std::countr_zero(to[j]);
    }
    for (std::size_t at = 0; at + 4 <= arranged.size(); at += 4) {
        std::uint32_t stored[4] = {};
        for (int bit = 0; bit < 128; ++bit) stored[bit / 32] |= (arranged[at + from[bit] / 32] >> from[bit] % 32 & 1) << bit % 32;
        std::copy_n(stored, 4, arranged.begin() + static_cast<std::ptrdiff_t>(at));
    }
}

} // namespace moeplan::kernels::grouped_linear::mxfp4
