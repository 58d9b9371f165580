#pragma once
/// The grouped product of gemm_kernel.cuh with 4-bit weights. Same tiles and epilogue; a stage is 128 of the
/// contraction: 16 KB of packed weights, 1 KB of scales, up to 32 KB of tokens. The multiplying warps read packed words,
/// expand them to bf16 in registers and multiply from there (wgmma with A in registers).
///
/// Expanding: a code's exponent and mantissa bits belong in the low exponent and high mantissa bits of a bf16, which is
/// the value times 2^-126, exact for 0 and 0.5 too (a bf16 subnormal); one multiplication by 2^(s - 127 + 126 - 64)
/// finishes it. The 2^-64 keeps that factor's exponent in range for every scale up to 2^65 and is undone on the fp32
/// sums. In the words of `arrange` (mxfp4.hpp) a shift and a mask put two codes there: 7 operations of the integer pipe
/// for 8 weights, where 20 were needed for words as stored.
///
/// Forward: word j of a block of 32 is what thread 4 i + j needs of row i for two instructions.
/// Input gradient: the instruction's rows are columns of the weight; half a word has columns c, c + 8, c + 16, c + 24,
/// which are the four rows that a thread holds of two instructions.

#include "kernels/grouped_linear/gemm_kernel.cuh"

namespace moeplan::kernels::grouped_linear::mxfp4 {

inline constexpr float sum_factor = 0x1p64f;   // undoes the 2^-64 of the expanded weights
inline constexpr int step = 128;              // contraction per stage
inline constexpr int packed_stage = 256 * 64; // bytes
inline constexpr int scale_stage = 1024;
inline constexpr int token_part = tile_tokens * 64 * 2; // tokens of 64 of the contraction
inline constexpr int stage_bytes = packed_stage + scale_stage + 2 * token_part;
inline constexpr std::size_t shared_total =
    1024 + ring_stages * stage_bytes + 2 * staging_bytes + sizeof(SharedTail);

struct Packed {
    CUtensorMap scales; ///< prepared [experts, in / 32, out], box 128 rows x 4 (gradient: 8) blocks
    int out;
};

template <bool gated_, bool gradient_>
struct Config {
    static constexpr bool gated = gated_;
    static constexpr bool gradient = gradient_;
};

/// 2^(s - 65) of scale byte s as a bf16 is s * 2^7 + this, in both halves.
inline constexpr std::uint32_t scale_bias = 62u * 128u * 0x10001u;

__device__ __forceinline__ std::uint32_t times(std::uint32_t a, std::uint32_t b) {
    std::uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/// Codes 2 i and 2 i + 1 of both halves of an arranged word, times `factor`.
__device__ __forceinline__ void expand(std::uint32_t w, int i, std::uint32_t factor, std::uint32_t& even, std::uint32_t& odd) {
    constexpr std::uint32_t number = 0x01c001c0u, sign = 0x80008000u;
    if (i == 0) {
        even = times(w & (number | sign), factor);
        odd = times((w << 3) & (number | sign), factor);
    } else {
        even = times(((w << 6) & number) | ((w << 1) & sign), factor);
        odd = times(((w >> 3) & number) | ((w << 2) & sign), factor);
    }
}

template <typename C>
__device__ __forceinline__ void load_stage(char* stage, const Maps& maps, const Problem& p, const Packed& w,
                                           const Tile& tile, int width, int half, int k, ptx::Barrier* full) {
    const int parts = p.contraction - k > 64 ? 2 : 1;
    char* scales = stage + packed_stage;
    char* tokens = scales + scale_stage;
    // One tensor copy per 128 rows: eight plain copies of 128 bytes kept the loading thread busier than the rest.
    ptx::barrier_arrive_expect(full, packed_stage + scale_stage + parts * width * 128);
    if constexpr (C::gradient) {
        ptx::tensor_load_4d(stage, &maps.weight, tile.row_tile * 128, half, k, tile.expert, full);
        ptx::tensor_load_3d(scales, &w.scales, half * p.contraction + k, tile.row_tile * 8, tile.expert, full);
    } else {
#pragma unroll
        for (int piece = 0; piece < 2; ++piece) {
            const int first = C::gated ? tile.row_tile * 128 : tile.row_tile * tile_rows + piece * 128;
            ptx::tensor_load_4d(stage + piece * (packed_stage / 2), &maps.weight, k / 2, C::gated ? piece : 0, first,
                                tile.expert, full);
            ptx::tensor_load_3d(scales + piece * 512, &w.scales, first + (C::gated ? piece * (w.out / 2) : 0), k / 32,
                                tile.expert, full);
        }
    }
    for (int part = 0; part < parts; ++part) {
        char* to = tokens + part * token_part;
        int row = 0;
        for (; row + 64 <= width; row += 64)
            ptx::tensor_load_3d(to + row * 128, &maps.tokens_64, k + part * 64, half, tile.token0 + row, full);
        for (; row < width; row += 16)
            ptx::tensor_load_3d(to + row * 128, &maps.tokens_16, k + part * 64, half, tile.token0 + row, full);
    }
}

/// What a thread reads of 32 of the contraction: forward, of its rows of block b, [b][r]; gradient, of contraction
/// 16 i + 8 h and on, [i][h].
struct Codes {
    std::uint32_t word[2][2];
    std::uint32_t scale[2][2]; ///< gradient: of two rows
};

/// Number `k32` (0 to 3) of the stage.
template <typename C>
__device__ __forceinline__ Codes read_codes(const char* stage, int group, int k32) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const char* scales = stage + packed_stage;
    Codes c;
#pragma unroll
    for (int x = 0; x < 2; ++x)
#pragma unroll
        for (int y = 0; y < 2; ++y) {
            if constexpr (!C::gradient) {
                const int piece = C::gated ? x : group;
                const int row = (C::gated ? group : x) * 64 + warp * 16 + lane / 4 + 8 * y;
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

/// A fragments of instruction `i` (0 or 1) of these 32 of the contraction: a[block][4].
template <typename C>
__device__ __forceinline__ void fragments(const Codes& c, int i, std::uint32_t (&a)[2][4]) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
        if constexpr (!C::gradient) {
#pragma unroll
            for (int r = 0; r < 2; ++r)
                expand(c.word[x][r], i, c.scale[x][r] * 0x00800080u + scale_bias, a[x][r], a[x][r + 2]);
        } else {
            const std::uint32_t factor = __byte_perm(c.scale[i][x], 0, 0x4140) * 128u + scale_bias;
#pragma unroll
            for (int block = 0; block < 2; ++block)
                expand(c.word[i][x], block, factor, a[block][2 * x], a[block][2 * x + 1]);
        }
    }
}

template <typename C, int n>
__device__ __forceinline__ void multiply_packed(char* ring, SharedTail& tail, ptx::RingPosition<ring_stages>& at,
                                                const Problem& p, const Tile& tile, int group, char* staging) {
    float acc[2][ptx::Wgmma<n>::accumulators] = {};
    const bool elected = threadIdx.x % 32 == 0;
    std::uint32_t a[2][2][4]; // two buffers: one is read by the tensor cores while the other is filled
    int previous = -1;        // stage whose last instructions may still run
    for (int half = 0; half < p.halves; ++half)
        for (int k = 0; k < p.contraction; k += step) {
            const char* stage = ring + at.stage * stage_bytes;
            const int parts = p.contraction - k > 64 ? 2 : 1;
            ptx::barrier_wait(&tail.full[at.stage], at.parity);
            Codes codes = read_codes<C>(stage, group, 0);
            for (int part = 0; part < parts; ++part) {
                const std::uint64_t b = ptx::wgmma_descriptor(
                    ptx::shared_address(stage + packed_stage + scale_stage + part * token_part));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    fragments<C>(codes, i % 2, a[i % 2]);
                    if (i % 2 == 1) codes = read_codes<C>(stage, group, (part * 2 + i / 2 + 1) & 3);
                    ptx::wgmma_begin();
#pragma unroll
                    for (int block = 0; block < 2; ++block)
                        ptx::Wgmma<n>::template rs<>(acc[block], a[i % 2][block], ptx::wgmma_advance(b, i * 32), true);
                    ptx::wgmma_commit();
                    ptx::wgmma_wait<1>();
                    if (i == 0) {
                        __syncwarp(); // every lane has read its words
                        ptx::barrier_arrive_if(elected && part == 0 && previous >= 0,
                                               &tail.empty[previous & (ring_stages - 1)]);
                    }
                }
            }
            previous = static_cast<int>(at.stage);
            at.advance();
        }
    ptx::wgmma_wait<0>();
    __syncwarp();
    if (elected) ptx::barrier_arrive(&tail.empty[previous]);
    ptx::wgmma_touch(acc[0]);
    ptx::wgmma_touch(acc[1]);
    store_tile<C::gated, n, C::gradient>(acc, p.output, tile, group, staging);
}

template <typename C>
__global__ void __launch_bounds__(kernel_threads, 1)
    grouped_gemm_mxfp4(const __grid_constant__ Maps maps, const __grid_constant__ Problem p,
                       const __grid_constant__ Packed weights) {
    extern __shared__ char dynamic_shared[];
    char* ring = dynamic_shared + (1024 - ptx::shared_address(dynamic_shared) % 1024) % 1024;
    char* staging = ring + ring_stages * stage_bytes;
    SharedTail& tail = *reinterpret_cast<SharedTail*>(staging + 2 * staging_bytes);
    if (threadIdx.x == 0) {
        ptx::tensor_prefetch_map(&maps.weight);
        for (int s = 0; s < ring_stages; ++s) {
            ptx::barrier_init(&tail.full[s], 1);
            ptx::barrier_init(&tail.empty[s], 8);
        }
        ptx::fence_barrier_init();
    }
    for (int e = threadIdx.x; e <= p.experts; e += kernel_threads) tail.offsets[e] = p.offsets[e];
    __syncthreads();
    TileWalk<1> walk(tail.offsets, p.experts, p.row_tiles);
    Tile tile;
    if (threadIdx.x < 128) {
        ptx::registers_release<40>();
        if (threadIdx.x != 0) return;
        ptx::RingPosition<ring_stages> at{0, 1};
        for (int item = blockIdx.x; walk.find(item, 0, tile); item += gridDim.x)
            for (int half = 0; half < p.halves; ++half)
                for (int k = 0; k < p.contraction; k += step) {
                    ptx::barrier_wait(&tail.empty[at.stage], at.parity);
                    load_stage<C>(ring + at.stage * stage_bytes, maps, p, weights, tile,
                                  instruction_width(tile.tokens), half, k, &tail.full[at.stage]);
                    at.advance();
                }
    } else {
        ptx::registers_acquire<232>();
        const int group = threadIdx.x / 128 - 1;
        ptx::RingPosition<ring_stages> at;
        char* mine = staging + group * staging_bytes;
        for (int item = blockIdx.x; walk.find(item, 0, tile); item += gridDim.x) {
            switch (instruction_width(tile.tokens)) {
            case 16: multiply_packed<C, 16>(ring, tail, at, p, tile, group, mine); break;
            case 32: multiply_packed<C, 32>(ring, tail, at, p, tile, group, mine); break;
            case 48: multiply_packed<C, 48>(ring, tail, at, p, tile, group, mine); break;
            case 64: multiply_packed<C, 64>(ring, tail, at, p, tile, group, mine); break;
            case 96: multiply_packed<C, 96>(ring, tail, at, p, tile, group, mine); break;
            default: multiply_packed<C, 128>(ring, tail, at, p, tile, group, mine); break;
            }
        }
    }
}

} // namespace moeplan::kernels::grouped_linear::mxfp4
