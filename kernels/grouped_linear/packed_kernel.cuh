#pragma once
/// The grouped product of gemm_kernel.cuh with weights of 4 or 8 bits. Same tiles and epilogue; a stage is 128 of the
/// contraction: packed weights, their scales, up to 32 KB of tokens. The multiplying warps read packed words, expand
/// them to bf16 in registers and multiply from there (wgmma with A in registers).
///
/// A format F (mxfp4_format.cuh, fp8_format.cuh) says how its weights are loaded, read and expanded:
///
///     load      tensor copies of the weights of a stage (F::weight_bytes)
///     Scales    what a warpgroup knows of the scales of the stage at hand, `enter`ed stage by stage
///     read      the codes of 32 of the contraction that this thread expands
///     expand    the fragments of one instruction of 16 of them: a[block][4]
///     parts     halves of a stage in one piece of code: both where the registers of the longer one suffice
///
/// Expanded weights are 2^-64 times their value, so that factors from codes to values are in range whatever the scale;
/// it is undone on the fp32 sums, before an adapter's low-rank product is added as in gemm_kernel.cuh.

#include "kernels/grouped_linear/gemm_kernel.cuh"
#include "kernels/grouped_linear/host_checks.hpp"
#include "kernels/grouped_linear/pairs.hpp"

namespace moeplan::kernels::grouped_linear::packed {

inline constexpr float sum_factor = 0x1p64f;
inline constexpr int step = 128; // contraction per stage

/// What formats need beside `Problem`.
struct Weights {
    CUtensorMap scales;        ///< MXFP4: prepared [experts, in / 32, out], box 128 rows x 4 (gradient: 8) blocks
    const float* block_scales; ///< FP8: [experts, out / 128, ceil(in / 128)]
    int in, out;
};

__device__ __forceinline__ std::uint32_t times(std::uint32_t a, std::uint32_t b) {
    std::uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/// How blocks lie on a multiprocessor. `few`: for experts of few tokens (where F::few), whose warps wait for their own
/// steps (words, expansion, product) more than for anything that runs out: two blocks share it, with tiles of at most 32
/// tokens, whose sums half of its registers hold (for 48 the compiler runs the products one after the other).
template <class F, bool few>
struct Blocks {
    static constexpr int on_one = few ? 2 : 1;
    static constexpr int most = few ? few_tokens : tile_tokens;
    static constexpr int stages = few ? 3 : F::stages;
    static constexpr int threads = few ? 256 + 64 : kernel_threads;
    static constexpr int token_part = most * 64 * 2; // tokens of 64 of the contraction
    static constexpr int stage_bytes = F::weight_bytes + 2 * token_part;
    static constexpr std::size_t shared = 1024 + stages * stage_bytes + 2 * staging_bytes + sizeof(SharedTail);
    static_assert(stages <= ring_stages && (!F::takes_adapter || stage_bytes >= weight_stage + token_stage));
};

template <class F, class B>
__device__ __forceinline__ void produce_packed(char* ring, SharedTail& tail, const Maps& maps, const Problem& p, const Weights& w) {
    ptx::RingPosition<B::stages> at{0, 1};
    Reader reader(tail.hand);
    for (;;) {
        const Tile tile = reader.copy();
        if (tile.tokens == 0) break;
        const int width = instruction_width(tile.tokens);
        for (int half = 0; half < p.halves; ++half)
            for (int k = 0; k < p.contraction; k += step) {
                char* stage = ring + at.stage * B::stage_bytes;
                ptx::Barrier* full = &tail.full[at.stage];
                const int parts = p.contraction - k > 64 ? 2 : 1;
                ptx::barrier_wait(&tail.empty[at.stage], at.parity);
                ptx::barrier_arrive_expect(full, F::weight_bytes + parts * width * 128);
                F::load(stage, maps, w, tile, half * p.contraction, half, k, full);
                for (int part = 0; part < parts; ++part)
                    load_tokens(stage + F::weight_bytes + part * B::token_part, &maps.tokens_64, &maps.tokens_16,
                                   k + part * 64, half, tile, width, full);
                at.advance();
            }
        if constexpr (F::takes_adapter)
            for (int r = 0; r < p.adapter_rank; r += step_k) {
                char* stage = ring + at.stage * B::stage_bytes;
                ptx::Barrier* full = &tail.full[at.stage];
                ptx::barrier_wait(&tail.empty[at.stage], at.parity);
                ptx::barrier_arrive_expect(full, weight_stage + width * 128);
                load_weights<typename F::Adapter>(stage, &maps.adapter_weight, tile, p.adapter_shared ? 0 : tile.expert, 0, r,
                                                  full, 0);
                load_tokens(stage + weight_stage, &maps.adapter_64, &maps.adapter_16, r, 0, tile, width, full);
                at.advance();
            }
    }
}

template <class F, class B, int n>
__device__ __forceinline__ void multiply_packed(char* ring, SharedTail& tail, ptx::RingPosition<B::stages>& at,
                                                const Problem& p, const Weights& w, const Tile& tile, int group, char* staging) {
    using Instruction = ptx::Wgmma<n>;
    float acc[2][Instruction::accumulators] = {};
    const bool elected = threadIdx.x % 32 == 0;
    std::uint32_t a[2][2][4]; // two buffers: one is read by the tensor cores while the other is filled
    int previous = -1;        // stage whose last instructions may still run
    typename F::Scales scales(w, tile, group);
    for (int half = 0; half < p.halves; ++half)
        for (int k = 0; k < p.contraction; k += step) {
            const char* stage = ring + at.stage * B::stage_bytes;
            const int parts = p.contraction - k > 64 ? 2 : 1;
            scales.enter();
            ptx::barrier_wait(&tail.full[at.stage], at.parity);
            typename F::Codes codes = F::read(stage, group, 0);
#pragma unroll F::parts
            for (int part = 0; part < (F::parts == 2 ? 2 : parts); ++part) {
                if (F::parts == 2 && part == 1 && p.contraction - k <= 64) break;
                const std::uint64_t b = ptx::wgmma_descriptor(ptx::shared_address(stage + F::weight_bytes + part * B::token_part));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    F::expand(codes, scales, i % 2, a[i % 2]);
                    if (i % 2 == 1 && (F::parts == 1 || part * 2 + i / 2 < 3)) codes = F::read(stage, group, (part * 2 + i / 2 + 1) & 3);
                    ptx::wgmma_begin();
#pragma unroll
                    for (int block = 0; block < 2; ++block)
                        Instruction::template rs<>(acc[block], a[i % 2][block], ptx::wgmma_advance(b, i * 32), true);
                    ptx::wgmma_commit();
                    ptx::wgmma_wait<1>();
                    if (i == 0) {
                        __syncwarp(); // every lane has read its words
                        ptx::barrier_arrive_if(elected && part == 0 && previous >= 0, &tail.empty[max(previous, 0)]);
                    }
                }
            }
            previous = static_cast<int>(at.stage);
            at.advance();
        }
    ptx::wgmma_wait<0>();
    __syncwarp();
    if (elected) ptx::barrier_arrive(&tail.empty[previous]);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
        ptx::wgmma_touch(acc[block]);
#pragma unroll
        for (float& sum : acc[block]) sum *= sum_factor;
    }
    if constexpr (F::takes_adapter) {
        using Adapter = typename F::Adapter;
        constexpr int advance = Adapter::major == Major::k ? 32 : 2048;
        for (int r = 0; r < p.adapter_rank; r += step_k) {
            const std::uint32_t stage = ptx::shared_address(ring) + at.stage * B::stage_bytes;
            const std::uint64_t rows = ptx::wgmma_descriptor(stage + group * 2 * weight_block);
            const std::uint64_t b = ptx::wgmma_descriptor(stage + weight_stage);
            ptx::barrier_wait(&tail.full[at.stage], at.parity);
            for (int kk = 0; kk < step_k / 16 && r + kk * 16 < p.adapter_rank; ++kk) {
                ptx::wgmma_begin();
#pragma unroll
                for (int block = 0; block < 2; ++block)
                    Instruction::template ss<Adapter::major>(acc[block],
                                                             ptx::wgmma_advance(rows, block * weight_block + kk * advance),
                                                             ptx::wgmma_advance(b, kk * 32), true);
                ptx::wgmma_commit();
                ptx::wgmma_wait<0>();
            }
            if (elected) ptx::barrier_arrive(&tail.empty[at.stage]);
            at.advance();
        }
        ptx::wgmma_touch(acc[0]);
        ptx::wgmma_touch(acc[1]);
    }
    store_tile<F::gated, n, F::neighbours>(acc, p.output, tile, group, staging);
}

template <class F, class B>
__global__ void __launch_bounds__(B::threads, B::on_one)
    grouped_gemm_packed(const __grid_constant__ Maps maps, const __grid_constant__ Problem p, const __grid_constant__ Weights weights) {
    extern __shared__ char dynamic_shared[];
    char* ring = dynamic_shared + (1024 - ptx::shared_address(dynamic_shared) % 1024) % 1024;
    char* staging = ring + B::stages * B::stage_bytes;
    SharedTail& tail = *reinterpret_cast<SharedTail*>(staging + 2 * staging_bytes);
    Items<1> items;
    if (threadIdx.x == 288) items = Items<1>(p.next, nullptr, 0);
    if (threadIdx.x == 0) {
        ptx::tensor_prefetch_map(&maps.weight);
        for (int s = 0; s < B::stages; ++s) {
            ptx::barrier_init(&tail.full[s], 1);
            ptx::barrier_init(&tail.empty[s], 8);
        }
        tail.hand.init(257);
        ptx::fence_barrier_init();
    }
    for (int e = threadIdx.x; e <= p.experts; e += B::threads) tail.offsets[e] = p.offsets[e];
    __syncthreads();
    if (threadIdx.x >= 256) {
        if constexpr (B::on_one == 1) ptx::registers_release<40>();
        if (threadIdx.x == 256) produce_packed<F, B>(ring, tail, maps, p, weights);
        if (threadIdx.x == 288) {
            const TileWalk<1, B::most> walk(tail.offsets, p.experts, p.row_tiles);
            Dealer<1, TileWalk<1, B::most>>(items, walk, 0).deal_all(tail.hand);
        }
    } else {
        if constexpr (B::on_one == 1) ptx::registers_acquire<232>();
        const int group = threadIdx.x / 128;
        ptx::RingPosition<B::stages> at;
        char* mine = staging + group * staging_bytes;
        const auto multiply = [&]<int n>(const Tile& tile) { multiply_packed<F, B, n>(ring, tail, at, p, weights, tile, group, mine); };
        Reader reader(tail.hand);
        for (;;) {
            const Tile& tile = reader.read();
            if (tile.tokens == 0) break;
            const int width = instruction_width(tile.tokens);
            if (width == 16) multiply.template operator()<16>(tile);
            else if (width == 32) multiply.template operator()<32>(tile);
            else if constexpr (B::most > 32) {
                if (width == 48) multiply.template operator()<48>(tile);
                else if (width == 64) multiply.template operator()<64>(tile);
                else if (width == 96) multiply.template operator()<96>(tile);
                else multiply.template operator()<128>(tile);
            }
            reader.release();
        }
    }
}

template <class F, bool few>
void launch_blocks(const Maps& maps, const Problem& problem, const Weights& weights, const std::string& shape, cudaStream_t stream) {
    using B = Blocks<F, few>;
    check(cudaFuncSetAttribute(grouped_gemm_packed<F, B>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(B::shared)),
          "grouped_linear of packed weights [" + shape + "]: reserve shared memory");
    grouped_gemm_packed<F, B><<<B::on_one * device_facts().multiprocessors, B::threads, B::shared, stream>>>(maps, problem, weights);
    check_launch("grouped_linear of packed weights", shape);
}

template <class F>
void launch_packed(const Maps& maps, const Problem& problem, const Weights& weights, const Dims& d, cudaStream_t stream) {
    if constexpr (F::few)
        if (takes_few(d.rows, d.experts)) return launch_blocks<F, true>(maps, problem, weights, describe(d), stream);
    launch_blocks<F, false>(maps, problem, weights, describe(d), stream);
}

} // namespace moeplan::kernels::grouped_linear::packed
