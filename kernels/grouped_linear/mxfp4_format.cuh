#pragma once
/// MXFP4 weights for packed_kernel.cuh: 16 KB of codes and 1 KB of scales a stage.
///
/// Expanding: a code's exponent and mantissa bits belong in the low exponent and high mantissa bits of a bf16, which is
/// the value times 2^-126, exact for 0 and 0.5 too (a bf16 subnormal); one multiplication by 2^(s - 127 + 126 - 64)
/// finishes it, whose exponent is in range for every scale up to 2^65. In the words of `arrange` (mxfp4.hpp) a shift and
/// a mask put two codes there: 7 operations of the integer pipe for 8 weights, where 20 were needed for words as stored.
///
/// Forward: word j of a block of 32 is what thread 4 i + j needs of row i for two instructions.
/// Input gradient: the instruction's rows are columns of the weight; half a word has columns c, c + 8, c + 16, c + 24,
/// which are the four rows that a thread holds of two instructions.

#include "kernels/grouped_linear/packed_kernel.cuh"

namespace moeplan::kernels::grouped_linear::mxfp4 {

/// 2^(s - 65) of scale byte s as a bf16 is s * 2^7 + this, in both halves.
inline constexpr std::uint32_t scale_bias = 62u * 128u * 0x10001u;
inline constexpr int packed_stage = 256 * 64; // bytes

template <bool gated_, bool gradient>
struct Format {
    static constexpr bool gated = gated_, neighbours = gradient, takes_adapter = false, few = true;
    static constexpr int parts = 2;
    static constexpr int stages = 4;
    static constexpr int weight_bytes = packed_stage + 1024;

    struct Scales { // they come with the codes
        __device__ Scales(const packed::Weights&, const Tile&, int) {}
        __device__ void enter() {}
    };

    /// What a thread reads of 32 of the contraction: forward, of its rows of block b, [b][r]; gradient, of contraction
    /// 16 i + 8 h and on, [i][h].
    struct Codes {
        std::uint32_t word[2][2];
        std::uint32_t scale[2][2]; ///< gradient: of two rows
    };

    /// One tensor copy per 128 rows of scales: eight plain copies of 128 bytes kept the loading thread busier than the rest.
    static __device__ __forceinline__ void load(char* stage, const Maps& maps, const packed::Weights& w, const Tile& tile,
                                                int half_first, int half, int k, ptx::Barrier* full) {
        char* scales = stage + packed_stage;
        if constexpr (gradient) {
            ptx::tensor_load_4d(stage, &maps.weight, tile.row_tile * 128, half, k, tile.expert, full);
            ptx::tensor_load_3d(scales, &w.scales, half_first + k, tile.row_tile * 8, tile.expert, full);
        } else {
#pragma unroll
            for (int piece = 0; piece < 2; ++piece) {
                const int first = gated ? tile.row_tile * 128 : tile.row_tile * tile_rows + piece * 128;
                ptx::tensor_load_4d(stage + piece * (packed_stage / 2), &maps.weight, k / 2, gated ? piece : 0, first,
                                    tile.expert, full);
                ptx::tensor_load_3d(scales + piece * 512, &w.scales, first + (gated ? piece * (w.out / 2) : 0), k / 32,
                                    tile.expert, full);
            }
        }
    }

    /// Number `k32` (0 to 3) of the stage.
    static __device__ __forceinline__ Codes read(const char* stage, int group, int k32) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const char* scales = stage + packed_stage;
        Codes c;
#pragma unroll
        for (int x = 0; x < 2; ++x)
#pragma unroll
            for (int y = 0; y < 2; ++y) {
                if constexpr (!gradient) {
                    const int piece = gated ? x : group;
                    const int row = (gated ? group : x) * 64 + warp * 16 + lane / 4 + 8 * y;
                    c.word[x][y] = *reinterpret_cast<const std::uint32_t*>(stage + piece * (packed_stage / 2) +
                                                                          swizzle_64(row, k32) + lane % 4 * 4);
                    c.scale[x][y] = static_cast<std::uint8_t>(scales[piece * 512 + k32 * 128 + row]);
                } else {
                    const int column = group * 4 + warp; // 16-byte piece of a row: this warp's 32 columns
                    const int row = k32 * 32 + x * 16 + y * 8 + 2 * (lane % 4);
                    const std::uint32_t even =
                        *reinterpret_cast<const std::uint16_t*>(stage + swizzle_128(row, column) + lane / 4 * 2);
                    const std::uint32_t odd =
                        *reinterpret_cast<const std::uint16_t*>(stage + swizzle_128(row + 1, column) + lane / 4 * 2);
                    c.word[x][y] = __byte_perm(even, odd, 0x5410);
                    c.scale[x][y] = *reinterpret_cast<const std::uint16_t*>(scales + column * 128 + row);
                }
            }
        return c;
    }

    /// Codes 2 i and 2 i + 1 of both halves of an arranged word, times `factor`.
    static __device__ __forceinline__ void expand_word(std::uint32_t w, int i, std::uint32_t factor, std::uint32_t& even,
                                                       std::uint32_t& odd) {
        constexpr std::uint32_t number = 0x01c001c0u, sign = 0x80008000u;
        if (i == 0) {
            even = packed::times(w & (number | sign), factor);
            odd = packed::times((w << 3) & (number | sign), factor);
        } else {
            even = packed::times(((w << 6) & number) | ((w << 1) & sign), factor);
            odd = packed::times(((w >> 3) & number) | ((w << 2) & sign), factor);
        }
    }

    static __device__ __forceinline__ void expand(const Codes& c, const Scales&, int i, std::uint32_t (&a)[2][4]) {
#pragma unroll
        for (int x = 0; x < 2; ++x) {
            if constexpr (!gradient) {
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    expand_word(c.word[x][r], i, c.scale[x][r] * 0x00800080u + scale_bias, a[x][r], a[x][r + 2]);
            } else {
                const std::uint32_t factor = __byte_perm(c.scale[i][x], 0, 0x4140) * 128u + scale_bias;
#pragma unroll
                for (int block = 0; block < 2; ++block)
                    expand_word(c.word[i][x], block, factor, a[block][2 * x], a[block][2 * x + 1]);
            }
        }
    }
};

} // namespace moeplan::kernels::grouped_linear::mxfp4
