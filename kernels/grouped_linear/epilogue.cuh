#pragma once
/// From the accumulators of a transposed tile to rows of the output.
///
/// A warpgroup holds two blocks of 64 weight rows x n tokens (layout of ptx/wgmma.cuh). 32 tokens at a time are
/// rounded to bf16, transposed by stmatrix into a staging buffer of token rows (272-byte pitch: the eight rows of a
/// matrix fall on different banks), and written out as 16-byte pieces of contiguous rows.

#include "kernels/base/ptx.cuh"
#include "kernels/grouped_linear/cuda.hpp"
#include "kernels/grouped_linear/tile_schedule.hpp"

namespace moeplan::kernels::grouped_linear {

using ptx::Major;

inline constexpr int staging_tokens = 32;
inline constexpr int staging_pitch = 128 * 2 + 16;
inline constexpr int staging_bytes = staging_tokens * staging_pitch; // per warpgroup

struct Output {
    bf16* y;                ///< [rows, columns]
    bf16* pre;              ///< gated: [rows, 2 columns] or absent
    int columns;            ///< width of y
    const bf16* bias;       ///< [experts, columns (gated: 2 columns)] or absent
    bool interleaved_bias;  ///< gated: bias rows alternate gate and linear
    const float* row_scale; ///< [rows] or absent
    GatedActivation activation;
    float alpha = 1.0f; ///< factor of sums and bias
};

/// (v + bias) * scale of 16-row matrices, tokens `token` to `token + 15`, to staging columns `column` to `column + 15`.
/// `bias` is per weight row (l / 4, + 8), `scale` per token of this thread (2 (l % 4) + {0, 1}, + 8).
__device__ __forceinline__ void stage_16_tokens(char* staging, int token, int column, const float* v,
                                                const float (&bias)[2], const float (&scale)[4]) {
    const int lane = threadIdx.x % 32;
    std::uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int j = i / 2, r = i % 2;
        packed[i] = ptx::pack_bf16((v[4 * j + 2 * r] + bias[r]) * scale[2 * j],
                                   (v[4 * j + 2 * r + 1] + bias[r]) * scale[2 * j + 1]);
    }
    const int row = token + 8 * (lane / 16) + lane % 8;
    const int at = column + 8 * ((lane / 8) % 2);
    ptx::store_matrix_x4_transposed(ptx::shared_address(staging) + row * staging_pitch + at * 2, packed);
}

/// Copies `count` staged tokens of 128 columns to rows of y; `threads` (128 or 256) take part.
template <int threads = 128>
__device__ __forceinline__ void copy_out(const char* staging, const Output& out, int row0, int count, int column) {
    const int thread = threadIdx.x % threads;
    const int chunk = thread % 16;
    if (column + chunk * 8 >= out.columns) return;
    bf16* to = out.y + static_cast<std::int64_t>(row0) * out.columns + column + chunk * 8;
#pragma unroll
    for (int t = 0; t < staging_tokens; t += threads / 16) {
        const std::int64_t token = t + thread / 16;
        if (token < count)
            *reinterpret_cast<uint4*>(to + token * out.columns) =
                *reinterpret_cast<const uint4*>(staging + token * staging_pitch + chunk * 16);
    }
}

/// Gated: staging columns 0 to 63 are the gate, 64 to 127 the linear part, both rounded to bf16. The activation is
/// computed from the rounded values, so that the backward pass, which reads them from `pre`, differentiates exactly
/// what was computed.
template <int threads = 128>
__device__ __forceinline__ void activate_out(const char* staging, const Output& out, int row0, int count, int column) {
    const int thread = threadIdx.x % threads;
    const int chunk = thread % 8;
    if (column + chunk * 8 >= out.columns) return;
#pragma unroll 1
    for (int token = thread / 8; token < staging_tokens && token < count; token += threads / 8) {
        const char* from = staging + token * staging_pitch + chunk * 16;
        const uint4 gate = *reinterpret_cast<const uint4*>(from);
        const uint4 linear = *reinterpret_cast<const uint4*>(from + 128);
        const std::int64_t row = static_cast<std::int64_t>(row0 + token);
        if (out.pre != nullptr) {
            bf16* pre = out.pre + row * 2 * out.columns + column + chunk * 8;
            *reinterpret_cast<uint4*>(pre) = gate;
            *reinterpret_cast<uint4*>(pre + out.columns) = linear;
        }
        std::uint32_t result[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const std::uint32_t a = (&gate.x)[i], b = (&linear.x)[i];
            const float low = gated_activation(out.activation, __uint_as_float(a << 16), __uint_as_float(b << 16));
            const float high = gated_activation(out.activation, __uint_as_float(a & 0xffff0000u),
                                                __uint_as_float(b & 0xffff0000u));
            result[i] = ptx::pack_bf16(low, high);
        }
        *reinterpret_cast<uint4*>(out.y + row * out.columns + column + chunk * 8) =
            make_uint4(result[0], result[1], result[2], result[3]);
    }
}

/// `neighbours`: the 16 rows of a warp in its two blocks follow each other (no bias then), else they are 64 rows apart.
template <bool gated, int n, bool neighbours = false>
__device__ __forceinline__ void store_tile(const float (&acc)[2][n / 2], const Output& out, const Tile& tile, int group,
                                           char* staging) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 % 4;
    const int column0 = gated ? tile.row_tile * 128 + group * 64 : tile.row_tile * tile_rows + group * 128;
    const int barrier = 1 + group;
    float bias[2][2] = {};
    if (out.bias != nullptr) {
#pragma unroll
        for (int b = 0; b < 2; ++b)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int column = column0 + warp * 16 + lane / 4 + 8 * r + (gated ? 0 : 64 * b);
                const std::int64_t width = gated ? 2 * out.columns : out.columns;
                const int at = !gated ? column : out.interleaved_bias ? 2 * column + b : b * out.columns + column;
                if (column < out.columns) bias[b][r] = __bfloat162float(out.bias[tile.expert * width + at]);
            }
    }
#pragma unroll
    for (int t0 = 0; t0 < n; t0 += staging_tokens) {
        const int count = tile.tokens - t0;
        ptx::named_barrier(barrier, 128); // the last chunk has been read
#pragma unroll
        for (int t = t0; t < n && t < t0 + staging_tokens; t += 16) {
            float scale[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = t + 8 * (i / 2) + 2 * (lane % 4) + i % 2;
                scale[i] = out.alpha;
                if (!gated && out.row_scale != nullptr && token < tile.tokens)
                    scale[i] *= out.row_scale[tile.token0 + token];
            }
#pragma unroll
            for (int b = 0; b < 2; ++b)
                stage_16_tokens(staging, t - t0, neighbours ? warp * 32 + b * 16 : b * 64 + warp * 16, &acc[b][t / 2],
                                bias[b], scale);
        }
        ptx::named_barrier(barrier, 128);
        if constexpr (gated)
            activate_out(staging, out, tile.token0 + t0, count, column0);
        else
            copy_out(staging, out, tile.token0 + t0, count, column0);
    }
}

} // namespace moeplan::kernels::grouped_linear
