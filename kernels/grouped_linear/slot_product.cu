/// \file
/// out[e] = A_e^T B_e over an expert's rows (sm_90a): the contraction index is the row, so both operands are read along
/// their other index by transposing descriptors. Tile: 256 columns of a by n of b (16, 32, 64 or 128), 64 rows a stage,
/// two multiplying warpgroups, one thread that loads and one that deals (dealing.cuh). The rows of the next expert in an expert's
/// last stage are zeroed in shared memory on both sides (they may hold NaN). Bytes: a once per 128 columns of b, b once
/// per 256 columns of a.
#include "kernels/base/ptx.cuh"
#include "kernels/base/tma.hpp"
#include "kernels/grouped_linear/cuda.hpp"
#include "kernels/grouped_linear/dealing.cuh"
#include "kernels/grouped_linear/host_checks.hpp"
#include "kernels/grouped_linear/portable.hpp"

namespace moeplan::kernels::grouped_linear {
namespace {

constexpr int stage_rows = 64;
constexpr int a_stage = 4 * 64 * 128; // four pieces of 64 columns
constexpr int b_stage = 2 * 64 * 128;
constexpr int product_stages = 4;

struct alignas(16) SlotTile {
    int expert; ///< -1: there are no more
    int tile;
    int begin, end; ///< rows
};
struct SlotTail {
    Hand<SlotTile, 3> hand;
    ptx::Barrier full[product_stages], empty[product_stages];
};
constexpr std::size_t product_shared = 1024 + product_stages * (a_stage + b_stage) + 2 * staging_bytes + sizeof(SlotTail);

__device__ __forceinline__ void deal_slots(Items<1>& items, SlotTail& tail, const SlotProduct& p, int tiles) {
    ptx::RingPosition<3> at{0, 1};
    for (bool first = true;; first = false) {
        ptx::barrier_wait(&tail.hand.empty[at.stage], at.parity);
        const int item = first ? items.first() : items.take(), expert = item / tiles;
        const bool more = expert < p.experts;
        tail.hand.tiles[at.stage] = more ? SlotTile{expert, item % tiles, p.offsets[expert], p.offsets[expert + 1]} : SlotTile{-1, 0, 0, 0};
        if (!more) items.leave(p.experts * tiles);
        ptx::barrier_arrive(&tail.hand.full[at.stage]);
        at.advance();
        if (!more) return;
    }
}

/// Zeroes rows `from` to 63 of `pieces` pieces; 256 threads.
__device__ __forceinline__ void clear_rows(char* stage, int pieces, int from, int thread) {
    const int chunks = (stage_rows - from) * 8; // 16-byte chunks of a piece; the swizzle permutes inside a row only
    for (int i = thread; i < chunks * pieces; i += 256)
        *reinterpret_cast<uint4*>(stage + i / chunks * 8192 + from * 128 + i % chunks * 16) = make_uint4(0, 0, 0, 0);
}

/// Rows `i0` to i0 + 127 of a result in bf16, 16 bytes a store: 64 rows x 32 columns at a time through the staging buffer,
/// whose pitch of 80 bytes lets eight rows fall on different banks.
template <int n>
__device__ __forceinline__ void store_narrow(const float (&acc)[2][n / 2], bf16* to, const SlotProduct& p, int i0, int b0, int group,
                                             char* staging) {
    constexpr int pitch = 80, columns = n < 32 ? n : 32;
    static_assert(64 * pitch <= staging_bytes);
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int block = 0; block < 2; ++block)
#pragma unroll
        for (int c0 = 0; c0 < n; c0 += columns) {
            ptx::named_barrier(1 + group, 128); // the last part has been read
#pragma unroll
            for (int c = 0; c < columns; c += 16) {
                const float* v = &acc[block][(c0 + c) / 2];
                const std::uint32_t packed[4] = {ptx::pack_bf16(v[0], v[1]), ptx::pack_bf16(v[2], v[3]), ptx::pack_bf16(v[4], v[5]),
                                                 ptx::pack_bf16(v[6], v[7])};
                const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8, column = c + lane / 16 * 8;
                ptx::store_matrix_x4(ptx::shared_address(staging) + row * pitch + column * 2, packed);
            }
            ptx::named_barrier(1 + group, 128);
            constexpr int pieces = columns / 8;
#pragma unroll
            for (int at = thread; at < 64 * pieces; at += 128) {
                const std::int64_t i = i0 + block * 64 + at / pieces, column = b0 + c0 + at % pieces * 8;
                if (i < p.a_width && column < p.b_width)
                    *reinterpret_cast<uint4*>(to + i * p.b_width + column) =
                        *reinterpret_cast<const uint4*>(staging + at / pieces * pitch + at % pieces * 16);
            }
        }
}

template <int n>
__global__ void __launch_bounds__(kernel_threads, 1)
    multiply_slots(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                   const SlotProduct p) {
    extern __shared__ char dynamic_shared[];
    char* ring = dynamic_shared + (1024 - ptx::shared_address(dynamic_shared) % 1024) % 1024;
    char* staging = ring + product_stages * (a_stage + b_stage);
    SlotTail& tail = *reinterpret_cast<SlotTail*>(staging + 2 * staging_bytes);
    constexpr int b_pieces = n > 64 ? 2 : 1;
    Items<1> items;
    if (threadIdx.x == 32) items = Items<1>(p.next, nullptr, 0);
    if (threadIdx.x == 0) {
        for (int s = 0; s < product_stages; ++s) {
            ptx::barrier_init(&tail.full[s], 1);
            ptx::barrier_init(&tail.empty[s], 8);
        }
        tail.hand.init(257);
        ptx::fence_barrier_init();
    }
    __syncthreads();
    const int b_tiles = (p.b_width + n - 1) / n;
    if (threadIdx.x < 128) {
        ptx::registers_release<40>();
        if (threadIdx.x == 32) deal_slots(items, tail, p, (p.a_width + 255) / 256 * b_tiles);
        if (threadIdx.x != 0) return;
        ptx::RingPosition<product_stages> at{0, 1};
        Reader reader(tail.hand);
        for (;;) {
            const SlotTile item = reader.copy();
            if (item.expert < 0) return;
            const int a0 = item.tile / b_tiles * 256, b0 = item.tile % b_tiles * n;
            for (int row = item.begin; row < item.end; row += stage_rows) {
                char* stage = ring + at.stage * (a_stage + b_stage);
                ptx::Barrier* full = &tail.full[at.stage];
                ptx::barrier_wait(&tail.empty[at.stage], at.parity);
                ptx::barrier_arrive_expect(full, a_stage + b_pieces * 8192);
                for (int i = 0; i < 4; ++i) ptx::tensor_load_2d(stage + i * 8192, &a_map, a0 + i * 64, row, full);
                for (int i = 0; i < b_pieces; ++i) ptx::tensor_load_2d(stage + a_stage + i * 8192, &b_map, b0 + i * 64, row, full);
                at.advance();
            }
        }
    }
    ptx::registers_acquire<232>();
    const int thread = threadIdx.x - 128, group = thread / 128, lane = thread % 32, warp = thread / 32 % 4;
    ptx::RingPosition<product_stages> at;
    Reader reader(tail.hand);
    for (;; reader.release()) {
        const auto [expert, tile, begin, end] = reader.read();
        if (expert < 0) return;
        const int a0 = tile / b_tiles * 256, b0 = tile % b_tiles * n;
        float acc[2][n / 2] = {};
        for (int row = begin; row < end; row += stage_rows) {
            char* stage = ring + at.stage * (a_stage + b_stage);
            ptx::barrier_wait(&tail.full[at.stage], at.parity);
            if (end - row < stage_rows) {
                clear_rows(stage, 4, end - row, thread);
                clear_rows(stage + a_stage, b_pieces, end - row, thread);
                ptx::fence_async_shared();
                ptx::named_barrier(4, 256); // the results' are 1 and 2
            }
            const std::uint32_t address = ptx::shared_address(stage);
            const std::uint64_t a = ptx::wgmma_descriptor(address + group * 2 * 8192);
            const std::uint64_t b = ptx::wgmma_descriptor(address + a_stage, 1024, 8192);
            ptx::wgmma_begin();
#pragma unroll
            for (int kk = 0; kk < 4; ++kk)
#pragma unroll
                for (int block = 0; block < 2; ++block)
                    ptx::Wgmma<n>::template ss<ptx::Major::mn, ptx::Major::mn>(
                        acc[block], ptx::wgmma_advance(a, block * 8192 + kk * 2048), ptx::wgmma_advance(b, kk * 2048),
                        true);
            ptx::wgmma_commit();
            ptx::wgmma_wait<0>();
            __syncwarp(); // every lane has finished clearing
            if (lane == 0) ptx::barrier_arrive(&tail.empty[at.stage]);
            at.advance();
        }
        ptx::wgmma_touch(acc[0]);
        ptx::wgmma_touch(acc[1]);
        const std::int64_t first = static_cast<std::int64_t>(expert) * p.a_width * p.b_width;
        char* mine = staging + group * staging_bytes;
        if (p.out == nullptr) {
#pragma unroll
            for (int block = 0; block < 2; ++block)
#pragma unroll
                for (float& sum : acc[block]) sum *= p.scale;
            if (p.transposed)
                store_tile<false, n>(acc, Output{.y = p.narrow + first, .pre = nullptr, .columns = p.a_width, .bias = nullptr, .interleaved_bias = false,
                                                 .row_scale = nullptr, .activation = GatedActivation::swiglu},
                                     Tile{.expert = 0, .row_tile = a0 / 256, .token0 = b0, .tokens = static_cast<short>(min(n, p.b_width - b0)), .shares_weights = false, .store = true},
                                     group, mine);
            else
                store_narrow<n>(acc, p.narrow + first, p, a0 + group * 128, b0, group, mine);
            continue;
        }
        float* out = p.out + first;
#pragma unroll
        for (int block = 0; block < 2; ++block)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const std::int64_t i = a0 + group * 128 + block * 64 + warp * 16 + lane / 4 + 8 * r;
                if (i >= p.a_width) continue;
#pragma unroll
                for (int j = 0; j < n / 8; ++j) {
                    const std::int64_t column = b0 + 8 * j + 2 * (lane % 4);
                    if (column >= p.b_width) continue;
                    const float2 v = make_float2(acc[block][4 * j + 2 * r], acc[block][4 * j + 2 * r + 1]);
                    if (p.transposed) {
                        out[column * p.a_width + i] = v.x;
                        out[(column + 1) * p.a_width + i] = v.y;
                    } else {
                        *reinterpret_cast<float2*>(out + i * p.b_width + column) = v;
                    }
                }
            }
    }
}

CUtensorMap row_map(const bf16* base, int rows, int width, const char* name) {
    return make_tensor_map(TensorTile<2>{.base = base,
                                         .sizes = {static_cast<std::uint64_t>(width), static_cast<std::uint64_t>(rows)},
                                         .strides = {static_cast<std::uint64_t>(width) * 2},
                                         .box = {64, stage_rows}},
                           name);
}

template <int n>
void launch_product(const SlotProduct& p, const Dims& d, cudaStream_t stream) {
    check(cudaFuncSetAttribute(multiply_slots<n>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(product_shared)),
          "slot product [" + describe(d) + "]: reserve shared memory");
    multiply_slots<n><<<device_facts().multiprocessors, kernel_threads, product_shared, stream>>>(
        row_map(p.a, p.rows, p.a_width, "the left rows"), row_map(p.b, p.rows, p.b_width, "the right rows"), p);
    check_launch("slot product", describe(d));
}

} // namespace

void slot_product(const SlotProduct& p, cudaStream_t stream) {
    const Dims d{.experts = p.experts, .rows = p.rows, .in = p.b_width, .out = p.a_width};
    check_dims(d, false, p.portable);
    void* result = p.out != nullptr ? static_cast<void*>(p.out) : p.narrow;
    if (p.rows == 0) {
        const std::size_t each = p.out != nullptr ? sizeof(float) : sizeof(bf16);
        check(cudaMemsetAsync(result, 0, each * static_cast<std::size_t>(p.experts) * p.a_width * p.b_width, stream),
              "slot product [" + describe(d) + "]: zeros");
        return;
    }
    check_pointer(p.a, "the left rows", d);
    check_pointer(p.b, "the right rows", d);
    check_pointer(result, "the result", d);
    if (p.portable) return portable::slot_product(p, stream);
    if (p.b_width <= 16) launch_product<16>(p, d, stream);
    else if (p.b_width <= 32) launch_product<32>(p, d, stream);
    else if (p.b_width <= 64) launch_product<64>(p, d, stream);
    else launch_product<128>(p, d, stream);
}

} // namespace moeplan::kernels::grouped_linear
