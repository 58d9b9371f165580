/// \file
/// Grouped products of mma.sync, ldmatrix and cp.async: a block has 128 rows of one expert by 128 columns, 8 warps of
/// 32 x 64 each, and walks the contraction in steps of 64 through three stages (96 KB, which every device from 8.0 on
/// has). Row tiles have no table: expert e owns the slots from (offsets[e] - offsets[0]) / 128 + e on (attention/geometry.cuh says why
/// that is enough), and a block finds its expert by bisection. The low-rank pair is more of the contraction.
#include "kernels/attention/tiles.cuh"
#include "kernels/grouped_linear/host_checks.hpp"
#include "kernels/grouped_linear/portable.hpp"

namespace moeplan::kernels::grouped_linear::portable {
namespace {

using cuda::attention::chunk_at;

constexpr int tile = 128, step = 64, threads = 256, stages = 3;
constexpr std::uint32_t tile_bytes = tile * step * 2;
constexpr std::size_t shared_total = std::size_t{stages} * 2 * tile_bytes;

/// Lines [first, first + lines) and columns [column, column + columns) of a matrix to a tile; zeros from `end` and
/// `width` on. `gather`: which line stands at a place.
template <int lines, int columns>
__device__ __forceinline__ void load(std::uint32_t to, const bf16* base, std::int64_t pitch, const int* gather,
                                     int first, int end, int column, int width) {
    constexpr int chunks = columns / 8;
#pragma unroll
    for (int i = threadIdx.x; i < lines * chunks; i += threads) {
        const int line = i / chunks, at = i % chunks * 8;
        const bool valid = first + line < end && column + at < width;
        const std::int64_t from = !valid ? 0 : gather != nullptr ? gather[first + line] : first + line;
        ptx::copy_16(chunk_at<lines>(to, line, at), base + from * pitch + (valid ? column + at : 0), valid);
    }
}

/// c[32, 64] += a b over one step. `turned`: a's tile has the contraction down its lines; `rows`: b's has it along them.
template <bool turned, bool rows>
__device__ __forceinline__ void multiply(float (&c)[2][8][4], std::uint32_t a, std::uint32_t b, int row, int column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < step; k += 16) {
        std::uint32_t left[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
            if constexpr (turned)
                ptx::load_matrix_x4_transposed(
                    left[m], chunk_at<step>(a, k + lane / 16 * 8 + lane % 8, row + 16 * m + lane / 8 % 2 * 8));
            else
                ptx::load_matrix_x4(left[m], chunk_at<tile>(a, row + 16 * m + lane % 16, k + lane / 16 * 8));
#pragma unroll
        for (int j = 0; j < 64; j += 16) {
            std::uint32_t both[4];
            if constexpr (rows)
                ptx::load_matrix_x4(both,
                                    chunk_at<tile>(b, column + j + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8));
            else
                ptx::load_matrix_x4_transposed(both, chunk_at<step>(b, k + lane % 16, column + j + lane / 16 * 8));
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                ptx::mma_bf16(c[m][j / 8], left[m], {both[0], both[1]});
                ptx::mma_bf16(c[m][j / 8 + 1], left[m], {both[2], both[3]});
            }
        }
    }
}

/// Runs `load(step, tile of a, tile of b)` two steps ahead of the products.
template <bool turned, bool rows, class Load>
__device__ __forceinline__ void accumulate(float (&c)[2][8][4], std::uint32_t memory, int steps, const Load& load) {
    const int warp = threadIdx.x / 32;
    const auto start = [&](int s) {
        const std::uint32_t a = memory + static_cast<std::uint32_t>(s % stages) * 2 * tile_bytes;
        if (s < steps) load(s, a, a + tile_bytes);
        ptx::copy_commit();
    };
    for (int s = 0; s + 1 < stages; ++s) start(s);
    for (int s = 0; s < steps; ++s) {
        ptx::copy_wait<stages - 2>();
        __syncthreads(); // this step has landed, and nobody reads the one before
        start(s + stages - 1);
        const std::uint32_t a = memory + static_cast<std::uint32_t>(s % stages) * 2 * tile_bytes;
        multiply<turned, rows>(c, a, a + tile_bytes, warp / 2 * 32, warp % 2 * 64);
    }
}

struct Product {
    const int* offsets;
    int experts, contraction, columns;
    const bf16* left;   ///< [lines, contraction]
    const int* gather;  ///< line of each row, or absent
    const bf16* weight; ///< [experts, columns, contraction], or with `rows` false [experts, contraction, columns]
    LowRank adapter;
    const bf16* bias;
    const float* row_scale;
    float alpha;
    bf16* out; ///< [rows, columns]
};

template <bool rows>
__global__ void __launch_bounds__(threads) grouped_product(const Product p) {
    extern __shared__ __align__(1024) char memory[];
    const int slot = static_cast<int>(blockIdx.x), column = static_cast<int>(blockIdx.y) * tile;
    const auto first_slot = [&](int e) { return (p.offsets[e] - p.offsets[0]) / tile + e; };
    int expert = 0;
    for (int high = p.experts; high - expert > 1;) {
        const int middle = (expert + high) / 2;
        if (first_slot(middle) <= slot) expert = middle;
        else high = middle;
    }
    const int end = p.offsets[expert + 1], row = p.offsets[expert] + (slot - first_slot(expert)) * tile;
    if (row >= end) return;
    const auto factor = [&](const bf16* base, int e, int contraction) {
        return base + static_cast<std::int64_t>(e) * p.columns * contraction;
    };
    const bf16 *weight = factor(p.weight, expert, p.contraction),
               *low_rank = factor(p.adapter.factor, p.adapter.shared ? 0 : expert, p.adapter.rank);
    const int own = (p.contraction + step - 1) / step, all = own + (p.adapter.rank + step - 1) / step;
    float c[2][8][4] = {};
    accumulate<false, rows>(c, ptx::shared_address(memory), all, [&](int s, std::uint32_t a, std::uint32_t b) {
        const bool base = s < own;
        const int k = (base ? s : s - own) * step, depth = base ? p.contraction : p.adapter.rank;
        load<tile, step>(a, base ? p.left : p.adapter.low, depth, base ? p.gather : nullptr, row, end, k, depth);
        const bf16* right = base ? weight : low_rank;
        if constexpr (rows) load<tile, step>(b, right, depth, nullptr, column, p.columns, k, depth);
        else load<step, tile>(b, right, p.columns, nullptr, k, depth, column, p.columns);
    });
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const std::int64_t i = row + warp / 2 * 32 + 16 * m + lane / 4 + 8 * r;
            if (i >= end) continue;
            const float scale = p.alpha * (p.row_scale != nullptr ? p.row_scale[i] : 1.0f);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const int at = column + warp % 2 * 64 + 8 * j + lane % 4 * 2;
                if (at >= p.columns) continue;
                float2 v = make_float2(c[m][j][2 * r], c[m][j][2 * r + 1]);
                if (p.bias != nullptr) {
                    const auto b = *reinterpret_cast<const __nv_bfloat162*>(p.bias + static_cast<std::int64_t>(expert) * p.columns + at);
                    v.x += __low2float(b), v.y += __high2float(b);
                }
                *reinterpret_cast<std::uint32_t*>(p.out + i * p.columns + at) = ptx::pack_bf16(scale * v.x, scale * v.y);
            }
        }
}

__global__ void __launch_bounds__(threads) slot_products(const SlotProduct p) {
    extern __shared__ __align__(1024) char memory[];
    const int b_tiles = (p.b_width + tile - 1) / tile, expert = static_cast<int>(blockIdx.y);
    const int a0 = static_cast<int>(blockIdx.x) / b_tiles * tile, b0 = static_cast<int>(blockIdx.x) % b_tiles * tile;
    const int begin = p.offsets[expert], end = p.offsets[expert + 1];
    float c[2][8][4] = {};
    accumulate<true, false>(c, ptx::shared_address(memory), (end - begin + step - 1) / step,
                            [&](int s, std::uint32_t a, std::uint32_t b) {
                                const int row = begin + s * step;
                                load<step, tile>(a, p.a, p.a_width, nullptr, row, end, a0, p.a_width);
                                load<step, tile>(b, p.b, p.b_width, nullptr, row, end, b0, p.b_width);
                            });
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const std::int64_t first = static_cast<std::int64_t>(expert) * p.a_width * p.b_width;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const std::int64_t i = a0 + warp / 2 * 32 + 16 * m + lane / 4 + e / 2 * 8;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const std::int64_t column = b0 + warp % 2 * 64 + 8 * j + lane % 4 * 2 + e % 2;
                if (i >= p.a_width || column >= p.b_width) continue;
                const std::int64_t at = first + (p.transposed ? column * p.a_width + i : i * p.b_width + column);
                if (p.out != nullptr) p.out[at] = c[m][j][e];
                else p.narrow[at] = __float2bfloat16(p.scale * c[m][j][e]);
            }
        }
}

template <class... Parameters>
void launch(void (*kernel)(Parameters...), dim3 blocks, const Dims& d, const Parameters&... arguments, cudaStream_t stream) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_total)),
          "grouped_linear (mma.sync) [" + describe(d) + "]: reserve shared memory");
    kernel<<<blocks, threads, shared_total, stream>>>(arguments...);
    check_launch("grouped_linear (mma.sync)", describe(d));
}

template <bool rows>
void multiply(const Product& p, const Dims& d, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(d.rows / tile + d.experts), static_cast<unsigned>(divide_up(p.columns, tile)));
    launch<Product>(grouped_product<rows>, blocks, d, p, stream);
}

} // namespace

void forward(const Forward& a, cudaStream_t stream) {
    multiply<true>({.offsets = a.offsets, .experts = a.dims.experts, .contraction = a.dims.in, .columns = a.dims.out,
                    .left = a.x, .gather = a.gather, .weight = a.weight, .adapter = a.adapter, .bias = a.bias,
                    .row_scale = a.row_scale, .alpha = a.alpha, .out = a.y},
                   a.dims, stream);
}

void input_gradient(const InputGradient& a, cudaStream_t stream) {
    require(a.layout == GateLayout::halves, a.dims, "interleaved halves have a kernel for Hopper alone");
    multiply<false>({.offsets = a.offsets, .experts = a.dims.experts, .contraction = a.dims.out, .columns = a.dims.in,
                     .left = a.dy, .gather = a.gather, .weight = a.weight, .adapter = a.adapter, .bias = nullptr,
                     .row_scale = a.row_scale, .alpha = a.alpha, .out = a.dx},
                    a.dims, stream);
}

void slot_product(const SlotProduct& p, cudaStream_t stream) {
    const int tiles = divide_up(p.a_width, tile) * divide_up(p.b_width, tile);
    launch<SlotProduct>(slot_products, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(p.experts)),
                        {.experts = p.experts, .rows = p.rows, .in = p.b_width, .out = p.a_width}, p, stream);
}

} // namespace moeplan::kernels::grouped_linear::portable
