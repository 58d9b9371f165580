#pragma once
/// The persistent grouped product D^T[256 weight rows, tokens] of one warp-specialised kernel (sm_90a).
///
/// Block: 3 warpgroups. Group 0 loads (one thread for tensor copies; all 128 when token rows are gathered with
/// 16-byte copies) and deals (dealing.cuh; thread 32, with gathered rows thread 0 before its loads), groups 1 and 2
/// multiply, each two m64 instructions per 16 of the contraction. Ring of 4 stages of 64 along the contraction: 32 KB of
/// weights, up to 16 KB of tokens. Tiles of tile_schedule.hpp; the instruction's width follows the tile's tokens.
///
/// Weights lie in the ring as 4 blocks of 64 rows x 64 (8 KB each, 128-byte swizzle), either with the contraction
/// contiguous (forward) or with the weight's own columns contiguous (input gradient; the transpose is done by the
/// descriptor). Bytes moved per tile and step: 32 KB + 128 B x tokens; flops 2 x 256 x 64 x tokens.

#include "kernels/base/ptx.cuh"
#include "kernels/base/swizzle.cuh"
#include "kernels/grouped_linear/cuda.hpp"
#include "kernels/grouped_linear/dealing.cuh"
#include "kernels/grouped_linear/epilogue.cuh"
#include "kernels/grouped_linear/tile_schedule.hpp"

namespace moeplan::kernels::grouped_linear {

inline constexpr int ring_stages = 4;
inline constexpr int step_k = 64;                            // contraction per stage
inline constexpr int weight_block = 64 * step_k * 2;         // bytes of 64 weight rows
inline constexpr int weight_stage = 4 * weight_block;        // 32 KB
inline constexpr int token_stage = tile_tokens * step_k * 2; // 16 KB
inline constexpr int max_experts = 1024;
inline constexpr int kernel_threads = 384;

struct SharedTail {
    ptx::Barrier full[ring_stages];
    ptx::Barrier empty[ring_stages];
    Hand<Tile> hand; // in shared memory throughout: the multiplying warps have no registers for it
    Passed passed;
    int offsets[max_experts + 1];
};
inline constexpr std::size_t shared_bytes =
    1024 + ring_stages * (weight_stage + token_stage) + 2 * staging_bytes + sizeof(SharedTail);

struct Maps {
    CUtensorMap weight;
    CUtensorMap tokens_16; ///< box of 16 token rows
    CUtensorMap tokens_64; ///< box of 64
    CUtensorMap adapter_weight; ///< the second product's, if any
    CUtensorMap adapter_16;
    CUtensorMap adapter_64;
};

struct Problem {
    const int* offsets;
    int experts;
    int row_tiles;
    int halves;       ///< the contraction runs over `halves` pieces
    int half_steps;   ///< stages per piece
    int contraction;  ///< elements per piece
    const bf16* tokens; ///< gathered rows only
    const int* gather;
    int adapter_rank;    ///< contraction of the second product, y += h B^T, in stages of its own
    bool adapter_shared; ///< one B for all experts
    Output output;
    int* next = nullptr; ///< counter of dealing.cuh, or absent
};

template <bool gated_, Major major_, bool gathered_, int cluster_>
struct Config {
    static constexpr bool gated = gated_;
    static constexpr Major major = major_;
    static constexpr bool gathered = gathered_;
    static constexpr int cluster = cluster_;
};

/// Weight blocks `first` to `last - 1` (of 4 of 64 rows) of one stage, to the blocks in `ranks`.
template <typename C>
__device__ __forceinline__ void load_weights(char* stage, const CUtensorMap* map, const Tile& tile, int expert, int half,
                                             int k, ptx::Barrier* full, int rank) {
    const int pieces = C::major == Major::k ? 2 : 4; // tensor copies per stage
    const int rows = C::major == Major::k ? 128 : 64;
#pragma unroll
    for (int p = 0; p < pieces; ++p) {
        if (C::cluster > 1 && tile.shares_weights && p / (pieces / 2) != rank) continue;
        int x, y, z;
        if constexpr (C::major == Major::k) {
            x = k;
            y = C::gated ? p : 0;
            z = C::gated ? tile.row_tile * 128 : tile.row_tile * tile_rows + p * rows;
        } else {
            x = tile.row_tile * tile_rows + p * rows;
            y = half;
            z = k;
        }
        char* to = stage + p * (weight_stage / pieces);
        if (C::cluster > 1 && tile.shares_weights)
            ptx::tensor_load_4d_multicast(to, map, x, y, z, expert, 0b11, full);
        else
            ptx::tensor_load_4d(to, map, x, y, z, expert, full);
    }
}

__device__ __forceinline__ int instruction_width(int tokens) {
    const int width = (tokens + 15) & ~15;
    return width == 80 ? 96 : width == 112 ? 128 : width;
}

__device__ __forceinline__ void load_tokens(char* to, const CUtensorMap* map_64, const CUtensorMap* map_16, int k, int half,
                                            const Tile& tile, int width, ptx::Barrier* full) {
    int row = 0;
    for (; row + 64 <= width; row += 64) ptx::tensor_load_3d(to + row * 128, map_64, k, half, tile.token0 + row, full);
    for (; row < width; row += 16) ptx::tensor_load_3d(to + row * 128, map_16, k, half, tile.token0 + row, full);
}

template <typename C>
using DealerOf = Dealer<C::cluster, TileWalk<C::cluster>>;

template <typename C>
__device__ __forceinline__ void produce(char* ring, SharedTail& tail, const Maps& maps, const Problem& p, int rank, const Items<C::cluster>& items) {
    const int thread = threadIdx.x;
    const bool leader = thread == 0;
    [[maybe_unused]] DealerOf<C> dealer(items, TileWalk<C::cluster>(tail.offsets, p.experts, p.row_tiles), rank);
    if constexpr (!C::gathered) {
        if (thread == 32) dealer.deal_all(tail.hand);
        if (!leader) return;
    }
    ptx::RingPosition<ring_stages> at{0, 1};
    [[maybe_unused]] ptx::RingPosition<2> dealing{0, 1};
    Reader reader(tail.hand);
    for (;;) {
        if constexpr (C::gathered)
            if (leader) dealer.deal(tail.hand, dealing);
        const Tile tile = reader.copy();
        if (tile.tokens == 0) break;
        const int width = instruction_width(tile.tokens);
        [[maybe_unused]] const bf16* rows[8];
        if constexpr (C::gathered) {
            const std::int64_t pitch = static_cast<std::int64_t>(p.contraction) * p.halves;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int row = thread / 8 + 16 * i;
                rows[i] = row < tile.tokens ? p.tokens + p.gather[tile.token0 + row] * pitch : nullptr;
            }
        }
        const int main_steps = p.halves * p.half_steps;
        const int steps = main_steps + (p.adapter_rank + step_k - 1) / step_k;
        for (int step = 0, half = 0, k = 0; step < steps; ++step, k += step_k) {
            if (step == main_steps) half = k = 0;
            const bool adapter = step >= main_steps;
            if (!adapter && k >= p.half_steps * step_k) {
                k = 0;
                ++half;
            }
            char* weights = ring + at.stage * (weight_stage + token_stage);
            char* tokens = weights + weight_stage;
            ptx::Barrier* full = &tail.full[at.stage];
            ptx::barrier_wait(&tail.empty[at.stage], at.parity);
            const bool tensor_tokens = !C::gathered || adapter;
            if (leader) {
                ptx::barrier_arrive_expect(full, weight_stage + (tensor_tokens ? width * step_k * 2 : 0));
                load_weights<C>(weights, adapter ? &maps.adapter_weight : &maps.weight, tile,
                                adapter && p.adapter_shared ? 0 : tile.expert, half, k, full, rank);
                if (tensor_tokens)
                    load_tokens(tokens, adapter ? &maps.adapter_64 : &maps.tokens_64,
                                adapter ? &maps.adapter_16 : &maps.tokens_16, k, half, tile, width, full);
            }
            if constexpr (C::gathered) {
                if (!adapter) {
                    const int chunk = thread % 8;
                    const bool inside = k + chunk * 8 < p.contraction;
                    const std::uint32_t to = ptx::shared_address(tokens);
                    const int column = half * p.contraction + k + chunk * 8;
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        const int row = thread / 8 + 16 * i;
                        if (16 * i < width) {
                            const bool valid = inside && rows[i] != nullptr;
                            ptx::copy_16(to + swizzle_128(row, chunk), valid ? rows[i] + column : p.tokens, valid);
                        }
                    }
                }
                ptx::barrier_arrive_after_async_copies(full);
            }
            at.advance();
        }
    }
}

/// One tile of instruction width n by one of the two multiplying warpgroups.
template <typename C, int n>
__device__ __forceinline__ void multiply(char* ring, SharedTail& tail, ptx::RingPosition<ring_stages>& at,
                                         const Problem& p, const Tile& tile, int group, char* staging) {
    using Instruction = ptx::Wgmma<n>;
    // Zeroed rather than overwritten by the first step: an accumulator that a predicate may leave unwritten counts as
    // live from one tile to the next, and those of all widths together do not fit the registers.
    float acc[2][Instruction::accumulators] = {};
    const int main_steps = p.halves * p.half_steps;
    const bool elected = threadIdx.x % 32 == 0;
    const auto release = [&](std::uint32_t stage) {
        if (elected) {
            ptx::barrier_arrive(&tail.empty[stage]);
            if constexpr (C::cluster > 1) ptx::barrier_arrive_at_rank(&tail.empty[stage], ptx::cluster_rank() ^ 1);
        }
    };
    // Gated: block b of both warpgroups belongs to half b; otherwise a warpgroup's two blocks are neighbours.
    const int first = C::gated ? group * weight_block : group * 2 * weight_block;
    constexpr int second = C::gated ? 2 * weight_block : weight_block;
    constexpr int advance = C::major == Major::k ? 32 : 2048;
    std::uint32_t previous = 0;
    const auto multiply_16 = [&](int kk) {
        const std::uint32_t weights = ptx::shared_address(ring) + at.stage * (weight_stage + token_stage);
        const std::uint64_t b = ptx::wgmma_advance(ptx::wgmma_descriptor(weights + weight_stage), kk * 32);
        Instruction::template ss<C::major>(acc[0], ptx::wgmma_advance(ptx::wgmma_descriptor(weights + first), kk * advance), b, true);
        Instruction::template ss<C::major>(acc[1], ptx::wgmma_advance(ptx::wgmma_descriptor(weights + first + second), kk * advance), b, true);
    };
    for (int step = 0; step < main_steps; ++step) {
        ptx::barrier_wait(&tail.full[at.stage], at.parity);
        if constexpr (C::gathered) ptx::fence_async_shared(); // the rows were written by ordinary asynchronous copies
        ptx::wgmma_begin();
#pragma unroll
        for (int kk = 0; kk < step_k / 16; ++kk) multiply_16(kk);
        ptx::wgmma_commit();
        if (step > 0) {
            ptx::wgmma_wait<1>();
            release(previous);
        }
        previous = at.stage;
        at.advance();
    }
    ptx::wgmma_wait<0>();
    release(previous);
    // The adapter's rank is often less than a stage.
    for (int r = 0; r < p.adapter_rank; r += step_k) {
        ptx::barrier_wait(&tail.full[at.stage], at.parity);
        for (int kk = 0; kk < step_k / 16 && r + kk * 16 < p.adapter_rank; ++kk) {
            ptx::wgmma_begin();
            multiply_16(kk);
            ptx::wgmma_commit();
            ptx::wgmma_wait<0>();
        }
        release(at.stage);
        at.advance();
    }
    ptx::wgmma_touch(acc[0]);
    ptx::wgmma_touch(acc[1]);
    if (tile.store) store_tile<C::gated, n>(acc, p.output, tile, group, staging);
}

template <typename C>
__global__ void __launch_bounds__(kernel_threads, 1)
    grouped_gemm(const __grid_constant__ Maps maps, const __grid_constant__ Problem p) {
    extern __shared__ char dynamic_shared[];
    char* ring = dynamic_shared + (1024 - ptx::shared_address(dynamic_shared) % 1024) % 1024;
    char* staging = ring + ring_stages * (weight_stage + token_stage);
    SharedTail& tail = *reinterpret_cast<SharedTail*>(staging + 2 * staging_bytes);
    const int rank = C::cluster > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
    if (threadIdx.x == 0) {
        ptx::tensor_prefetch_map(&maps.weight);
        for (int s = 0; s < ring_stages; ++s) {
            ptx::barrier_init(&tail.full[s], C::gathered ? 129 : 1);
            ptx::barrier_init(&tail.empty[s], 8 * C::cluster);
        }
        tail.hand.init(256 + (C::gathered ? 128 : 1));
        ptx::fence_barrier_init();
    }
    Items<C::cluster> items;
    if (threadIdx.x == (C::gathered ? 0 : 32)) {
        items = Items<C::cluster>(p.next, &tail.passed, rank);
        ptx::fence_barrier_init();
    }
    for (int e = threadIdx.x; e <= p.experts; e += kernel_threads) tail.offsets[e] = p.offsets[e];
    if constexpr (C::cluster > 1)
        ptx::cluster_sync();
    else
        __syncthreads();

    if (threadIdx.x < 128) {
        ptx::registers_release<40>();
        produce<C>(ring, tail, maps, p, rank, items);
    } else {
        ptx::registers_acquire<232>();
        const int group = threadIdx.x / 128 - 1;
        ptx::RingPosition<ring_stages> at;
        char* mine = staging + group * staging_bytes;
        Reader reader(tail.hand);
        for (;;) {
            const Tile& tile = reader.read();
            if (tile.tokens == 0) break;
            switch (instruction_width(tile.tokens)) {
            case 16: multiply<C, 16>(ring, tail, at, p, tile, group, mine); break;
            case 32: multiply<C, 32>(ring, tail, at, p, tile, group, mine); break;
            case 48: multiply<C, 48>(ring, tail, at, p, tile, group, mine); break;
            case 64: multiply<C, 64>(ring, tail, at, p, tile, group, mine); break;
            case 96: multiply<C, 96>(ring, tail, at, p, tile, group, mine); break;
            default: multiply<C, 128>(ring, tail, at, p, tile, group, mine); break;
            }
            reader.release();
        }
    }
    // The other block may still signal this one's barriers.
    if constexpr (C::cluster > 1) {
        __syncwarp();
        ptx::cluster_sync();
    }
}

/// Launches configuration C (defined in launch.cuh, instantiated one per translation unit).
template <typename C>
void launch(const Maps& maps, const Problem& problem, const std::string& shape, cudaStream_t stream);

} // namespace moeplan::kernels::grouped_linear
