#pragma once
/// FP8 (E4M3) weights in blocks of 128 x 128 for packed_kernel.cuh: 32 KB of codes a stage, and one scale for all that a
/// warpgroup multiplies in it, because a stage is 128 of the contraction and a warpgroup has 128 rows.
///
/// Expanding: a code's seven low bits belong in the low exponent and high mantissa bits of a bf16, which is the value
/// times 2^-120 (subnormals too). The scale, times 2^(120 - 64), is the sum of two bf16 numbers, high and low:
/// v = code high + (code low), which is the fp32 product rounded to bf16, but for ties. NaN codes read as 480.
/// In the words of `arrange` (fp8.hpp) a shift and masks put two codes there: 7 operations of the integer pipe and 4
/// multiplications for 4 weights.
///
/// Forward: word j of 16 columns is what thread 4 i + j needs of row i for one instruction.
/// Input gradient: the instruction's rows are columns of the weight; half a word has columns c and c + 8, the two rows
/// that a thread holds; those of two rows of the weight make a word.

#include "kernels/grouped_linear/packed_kernel.cuh"

namespace moeplan::kernels::grouped_linear::fp8 {

inline constexpr int packed_piece = 128 * 128; // bytes: 128 rows (gradient: columns) of 128 of the contraction

template <bool gradient>
struct Format {
    static constexpr bool gated = false, neighbours = false, takes_adapter = true, few = false;
    static constexpr int parts = 1;
    using Adapter = Config<false, gradient ? Major::mn : Major::k, false, 1>;
    static constexpr int stages = 3;
    static constexpr int weight_bytes = 2 * packed_piece;

    /// The scale of the next stage is read while this one is multiplied.
    class Scales {
    public:
        __device__ Scales(const packed::Weights& w, const Tile& tile, int group) {
            const int tall = w.out / 128, wide = (w.in + 127) / 128;
            const int block = min(tile.row_tile * 2 + group, (gradient ? wide : tall) - 1); // past the end: of rows not stored
            const std::int64_t first = static_cast<std::int64_t>(tile.expert) * tall * wide;
            at_ = w.block_scales + first + (gradient ? block : static_cast<std::int64_t>(block) * wide);
            stride_ = gradient ? wide : 1;
            left_ = gradient ? tall : wide;
            next_ = __ldg(at_);
        }
        __device__ __forceinline__ void enter() {
            const float scale = next_ * 0x1p56f;
            const bf16 rounded = __float2bfloat16(scale);
            const float rest = scale - __bfloat162float(rounded);
            high = ptx::pack_bf16(scale, scale);
            low = ptx::pack_bf16(rest, rest);
            if (--left_ > 0) at_ += stride_;
            next_ = __ldg(at_);
        }
        std::uint32_t high, low;

    private:
        const float* at_;
        int stride_, left_;
        float next_;
    };

    /// word[i][block][r]: of instruction i of these 32. Forward, r: row l / 4 + 8 r; gradient, r: contraction + 8 r.
    struct Codes {
        std::uint32_t word[2][2][2];
    };

    static __device__ __forceinline__ void load(char* stage, const Maps& maps, const packed::Weights&, const Tile& tile, int, int,
                                                int k, ptx::Barrier* full) {
#pragma unroll
        for (int piece = 0; piece < 2; ++piece) {
            const int first = tile.row_tile * tile_rows + piece * 128;
            ptx::tensor_load_3d(stage + piece * packed_piece, &maps.weight, gradient ? first : k, gradient ? k : first, tile.expert, full);
        }
    }

    static __device__ __forceinline__ Codes read(const char* stage, int group, int k32) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const char* piece = stage + group * packed_piece;
        Codes c;
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int block = 0; block < 2; ++block)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    if constexpr (!gradient) {
                        const int row = block * 64 + warp * 16 + lane / 4 + 8 * r;
                        c.word[i][block][r] =
                            *reinterpret_cast<const std::uint32_t*>(piece + swizzle_128(row, k32 * 2 + i) + lane % 4 * 4);
                    } else {
                        const int row = k32 * 32 + i * 16 + r * 8 + 2 * (lane % 4), chunk = block * 4 + warp;
                        const std::uint32_t even =
                            *reinterpret_cast<const std::uint16_t*>(piece + swizzle_128(row, chunk) + lane / 4 * 2);
                        const std::uint32_t odd =
                            *reinterpret_cast<const std::uint16_t*>(piece + swizzle_128(row + 1, chunk) + lane / 4 * 2);
                        c.word[i][block][r] = __byte_perm(even, odd, 0x5410);
                    }
                }
        return c;
    }

    static __device__ __forceinline__ std::uint32_t scaled(std::uint32_t codes, const Scales& s) {
        std::uint32_t r;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(codes), "r"(s.high), "r"(packed::times(codes, s.low)));
        return r;
    }

    static __device__ __forceinline__ void expand(const Codes& c, const Scales& s, int i, std::uint32_t (&a)[2][4]) {
        constexpr std::uint32_t number = 0x07f007f0u, sign = 0x80008000u;
#pragma unroll
        for (int block = 0; block < 2; ++block)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const std::uint32_t w = c.word[i][block][r];
                const std::uint32_t low = scaled(((w << 4) & number) | ((w << 8) & sign), s);
                const std::uint32_t high = scaled(((w >> 4) & number) | (w & sign), s);
                // Fragment registers: rows l / 4, + 8 of contraction 2 (l % 4), then of + 8.
                a[block][gradient ? 2 * r : r] = low;
                a[block][gradient ? 2 * r + 1 : r + 2] = high;
            }
    }
};

} // namespace moeplan::kernels::grouped_linear::fp8
