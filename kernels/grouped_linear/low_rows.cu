/// \file
/// The low-rank rows of adapters (sm_90a), bound by reading the rows once: tiles of at most 128 rows against all of a
/// factor's rank (128 of it at a time), 256 of the width a stage, two multiplying warpgroups of 64 rows each, one warp that
/// loads and one that deals. The rows are the instruction's 64, the rank is its width, so a small rank pays neither for 256
/// weight rows nor for 128 columns, as a tile of the base product would. Bytes: the rows once, the factor once a tile (from
/// L2), the rank's rows once. Tried without a difference: half the width a stage, and tiles that begin at different columns.
#include "kernels/base/ptx.cuh"
#include "kernels/base/tma.hpp"
#include "kernels/grouped_linear/cuda.hpp"
#include "kernels/grouped_linear/dealing.cuh"
#include "kernels/grouped_linear/host_checks.hpp"
#include "kernels/grouped_linear/tile_schedule.hpp"

namespace moeplan::kernels::grouped_linear {
namespace {

constexpr int row_block = 64 * 64 * 2;    // bytes of 64 rows of a part: 64 of the width
constexpr int low_threads = 320;

struct LowTail {
    ptx::Barrier full[4];
    ptx::Barrier empty[4];
    Hand<Tile, 3> hand;
    int offsets[max_experts + 1];
};

template <int n, Major major>
struct Stage {
    static constexpr int parts = n > 64 ? 2 : 4;
    static constexpr int factor_pieces = major == Major::mn && n > 64 ? 2 : 1;
    static constexpr int factor_piece = major == Major::k ? n * 128 : row_block;
    static constexpr int factor_part = factor_pieces * factor_piece;
    static constexpr int factor_at = 2 * parts * row_block;
    static constexpr int bytes = factor_at + parts * factor_part;
    static constexpr int room = (227 << 10) - 1024 - static_cast<int>(sizeof(LowTail)); // a block's most shared memory
    static constexpr int count = room / bytes < 4 ? room / bytes : 4;
    static constexpr std::size_t shared = 1024 + count * bytes + sizeof(LowTail);
};

/// Parts of the width that a stage has.
template <class S>
__device__ __forceinline__ int parts_from(int k, int width) {
    return min(S::parts, (width - k + 63) / 64);
}

template <int n, Major major>
__device__ __forceinline__ void load_low(char* ring, LowTail& tail, const CUtensorMap* rows, const CUtensorMap* factor,
                                         const LowRows& p) {
    using S = Stage<n, major>;
    ptx::RingPosition<S::count> at{0, 1};
    Reader reader(tail.hand);
    for (;;) {
        const Tile tile = reader.copy();
        if (tile.tokens == 0) break;
        const int blocks = tile.tokens > 64 ? 2 : 1;
        for (int k = 0; k < p.width; k += 64 * S::parts) {
            char* stage = ring + at.stage * S::bytes;
            const int parts = parts_from<S>(k, p.width);
            ptx::barrier_wait(&tail.empty[at.stage], at.parity);
            ptx::Barrier* full = &tail.full[at.stage];
            ptx::barrier_arrive_expect(full, parts * (blocks * row_block + S::factor_part));
            for (int b = 0; b < blocks; ++b)
                for (int part = 0; part < parts; ++part)
                    ptx::tensor_load_2d(stage + (S::parts * b + part) * row_block, rows, k + 64 * part, tile.token0 + 64 * b, full);
            for (int part = 0; part < parts; ++part)
                for (int piece = 0; piece < S::factor_pieces; ++piece) {
                    const int column = k + 64 * part, r = tile.row_tile * n + 64 * piece;
                    ptx::tensor_load_3d(stage + S::factor_at + part * S::factor_part + piece * S::factor_piece, factor,
                                        major == Major::k ? column : r, major == Major::k ? r : column, tile.expert, full);
                }
            at.advance();
        }
    }
}

template <int n>
__device__ __forceinline__ void store_low(const float (&acc)[n / 2], const LowRows& p, const Tile& tile, int group) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = group * 64 + warp * 16 + lane / 4 + 8 * r;
        if (row >= tile.tokens) continue;
        const std::int64_t first = static_cast<std::int64_t>(tile.token0 + row) * p.rank;
#pragma unroll
        for (int j = 0; j < n / 8; ++j) {
            const int column = tile.row_tile * n + 8 * j + 2 * (lane % 4);
            if (column >= p.rank) continue;
            const __nv_bfloat162 v = __floats2bfloat162_rn(p.alpha * acc[4 * j + 2 * r], p.alpha * acc[4 * j + 2 * r + 1]);
            *reinterpret_cast<__nv_bfloat162*>(p.low + first + column) = v;
            if (p.scaled == nullptr) continue;
            const float2 wide = __bfloat1622float2(v);
            *reinterpret_cast<__nv_bfloat162*>(p.scaled + first + column) = __floats2bfloat162_rn(p.scale * wide.x, p.scale * wide.y);
        }
    }
}

template <int n, Major major>
__global__ void __launch_bounds__(low_threads, 1)
    multiply_low(const __grid_constant__ CUtensorMap rows, const __grid_constant__ CUtensorMap factor, const LowRows p) {
    extern __shared__ char dynamic_shared[];
    char* ring = dynamic_shared + (1024 - ptx::shared_address(dynamic_shared) % 1024) % 1024;
    using S = Stage<n, major>;
    LowTail& tail = *reinterpret_cast<LowTail*>(ring + S::count * S::bytes);
    Items<1> items;
    if (threadIdx.x == 288) items = Items<1>(p.next, nullptr, 0);
    if (threadIdx.x == 0) {
        tail.hand.init(257);
        for (int s = 0; s < S::count; ++s) {
            ptx::barrier_init(&tail.full[s], 1);
            ptx::barrier_init(&tail.empty[s], 8);
        }
        ptx::fence_barrier_init();
    }
    for (int e = threadIdx.x; e <= p.factors; e += low_threads) tail.offsets[e] = p.offsets[e];
    __syncthreads();
    if (threadIdx.x >= 256) {
        if (threadIdx.x == 256) load_low<n, major>(ring, tail, &rows, &factor, p);
        if (threadIdx.x == 288) {
            const TileWalk<1> walk(tail.offsets, p.factors, (p.rank + n - 1) / n);
            Dealer<1, TileWalk<1>>(items, walk, 0).deal_all(tail.hand);
        }
        return;
    }
    const int group = threadIdx.x / 128;
    const bool elected = threadIdx.x % 32 == 0;
    constexpr int advance = major == Major::k ? 32 : 2048;
    ptx::RingPosition<S::count> at;
    Reader reader(tail.hand);
    for (;;) {
        const Tile& tile = reader.read();
        if (tile.tokens == 0) break;
        float acc[n / 2] = {};
        for (int k = 0; k < p.width; k += 64 * S::parts) {
            const std::uint32_t stage = ptx::shared_address(ring) + at.stage * S::bytes;
            const int parts = parts_from<S>(k, p.width);
            ptx::barrier_wait(&tail.full[at.stage], at.parity);
            for (int part = 0; part < parts; ++part) {
                const std::uint64_t a = ptx::wgmma_descriptor(stage + (S::parts * group + part) * row_block);
                const std::uint64_t b = ptx::wgmma_descriptor(stage + S::factor_at + part * S::factor_part, 1024, row_block);
                ptx::wgmma_begin();
#pragma unroll
                for (int kk = 0; kk < 4; ++kk)
                    ptx::Wgmma<n>::template ss<Major::k, major>(acc, ptx::wgmma_advance(a, kk * 32),
                                                                ptx::wgmma_advance(b, kk * advance), true);
                ptx::wgmma_commit();
                ptx::wgmma_wait<0>();
            }
            if (elected) ptx::barrier_arrive(&tail.empty[at.stage]);
            at.advance();
        }
        ptx::wgmma_touch(acc);
        store_low<n>(acc, p, tile, group); // of a tile of 64 rows or fewer the second group has multiplied what lay there
        reader.release();
    }
}

template <int n, Major major>
void launch_low(const LowRows& p, const Dims& d, cudaStream_t stream) {
    const std::uint64_t width = p.width, rank = p.rank, factors = p.factors;
    const auto rows = make_tensor_map(
        TensorTile<2>{.base = p.from, .sizes = {width, static_cast<std::uint64_t>(p.rows)}, .strides = {width * 2}, .box = {64, 64}},
        "rows of an adapter");
    const std::uint64_t across = major == Major::k ? width : rank, along = major == Major::k ? rank : width;
    const auto factor = make_tensor_map(TensorTile<3>{.base = p.factor,
                                                      .sizes = {across, along, factors},
                                                      .strides = {across * 2, across * along * 2},
                                                      .box = {64, major == Major::k ? n : 64u, 1}},
                                        "an adapter's factor");
    check(cudaFuncSetAttribute(multiply_low<n, major>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(Stage<n, major>::shared)),
          "low-rank rows [" + describe(d) + "]: reserve shared memory");
    multiply_low<n, major><<<device_facts().multiprocessors, low_threads, Stage<n, major>::shared, stream>>>(rows, factor, p);
    check_launch("low-rank rows", describe(d));
}

template <Major major>
void launch_rank(const LowRows& p, const Dims& d, cudaStream_t stream) {
    if (p.rank <= 16) launch_low<16, major>(p, d, stream);
    else if (p.rank <= 32) launch_low<32, major>(p, d, stream);
    else if (p.rank <= 64) launch_low<64, major>(p, d, stream);
    else launch_low<128, major>(p, d, stream);
}

} // namespace

void low_rows(const LowRows& p, cudaStream_t stream) {
    const Dims d{.experts = p.factors, .rows = p.rows, .in = p.width, .out = p.rank};
    check_dims(d, false);
    if (p.rows == 0) return;
    check_pointer(p.from, "the adapter's rows", d);
    check_pointer(p.factor, "the adapter's factor", d);
    check_pointer(p.low, "the low-rank rows", d);
    if (p.gradient) launch_rank<Major::mn>(p, d, stream);
    else launch_rank<Major::k>(p, d, stream);
}

} // namespace moeplan::kernels::grouped_linear
