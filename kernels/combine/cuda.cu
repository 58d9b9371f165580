/// \file
/// Combine kernels. Forward: a thread owns 8 columns of a token and reads its k rows with independent 16-byte loads;
/// bytes (k + 1) t h 2. Backward: a warp owns one (token, j).
#include "kernels/combine/cuda.hpp"

namespace moeplan::kernels::combine {
namespace {

constexpr int threads = 128;

__device__ __forceinline__ float low(std::uint32_t v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high(std::uint32_t v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ std::uint32_t pack(float a, float b) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const std::uint32_t*>(&v);
}

__global__ void __launch_bounds__(threads) gather_sum(int top_k, int pieces, int slices, const int* row_of,
                                                      const float* weights, const uint4* y, uint4* out) {
    const std::int64_t token = blockIdx.x / slices;
    const int piece = blockIdx.x % slices * threads + threadIdx.x;
    if (piece >= pieces) return;
    float sum[8] = {};
    for (int j0 = 0; j0 < top_k; j0 += 8) {
        uint4 v[8];
        float w[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const bool inside = j0 + j < top_k;
            const std::int64_t row = inside ? row_of[token * top_k + j0 + j] : -1;
            w[j] = row < 0 ? 0.0f : weights != nullptr ? weights[token * top_k + j0 + j] : 1.0f;
            v[j] = row < 0 ? make_uint4(0, 0, 0, 0) : __ldcs(&y[row * pieces + piece]);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum[2 * i] = fmaf(w[j], low((&v[j].x)[i]), sum[2 * i]);
                sum[2 * i + 1] = fmaf(w[j], high((&v[j].x)[i]), sum[2 * i + 1]);
            }
    }
    out[token * pieces + piece] = make_uint4(pack(sum[0], sum[1]), pack(sum[2], sum[3]), pack(sum[4], sum[5]),
                                             pack(sum[6], sum[7]));
}

__global__ void __launch_bounds__(256) spread(std::int64_t choices, int top_k, int pieces, const int* row_of,
                                              const float* weights, const uint4* y, const uint4* dout, uint4* dy,
                                              float* dweights) {
    const std::int64_t choice = blockIdx.x * 8ll + threadIdx.x / 32;
    if (choice >= choices) return;
    const int lane = threadIdx.x % 32;
    const std::int64_t row = row_of[choice], token = choice / top_k;
    float product = 0;
    if (row >= 0) {
        const float w = weights[choice];
#pragma unroll 4
        for (int p = lane; p < pieces; p += 32) {
            const uint4 d = dout[token * pieces + p];
            if (dweights != nullptr) {
                const uint4 v = __ldcs(&y[row * pieces + p]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    product = fmaf(low((&d.x)[i]), low((&v.x)[i]), product);
                    product = fmaf(high((&d.x)[i]), high((&v.x)[i]), product);
                }
            }
            if (dy != nullptr) {
                uint4 r;
#pragma unroll
                for (int i = 0; i < 4; ++i) (&r.x)[i] = pack(w * low((&d.x)[i]), w * high((&d.x)[i]));
                __stcs(&dy[row * pieces + p], r);
            }
        }
    }
    if (dweights == nullptr) return;
#pragma unroll
    for (int o = 16; o > 0; o /= 2) product += __shfl_xor_sync(0xffffffffu, product, o);
    if (lane == 0) dweights[choice] = product;
}

std::string describe(const permute::Dims& d, int h) {
    return "tokens=" + std::to_string(d.tokens) + " top_k=" + std::to_string(d.top_k) + " hidden=" + std::to_string(h);
}
void check_width(const permute::Dims& d, int h) {
    if (h <= 0 || h % 8 != 0)
        throw UnsupportedShape("combine [" + describe(d, h) +
                               "]: hidden must be a multiple of 8 (16-byte rows); pad it");
}

} // namespace

void forward(const permute::Dims& d, int h, const int* row_of, const float* weights, const __nv_bfloat16* y,
             __nv_bfloat16* out, cudaStream_t stream) {
    check_width(d, h);
    if (d.tokens == 0) return;
    const int pieces = h / 8, slices = (pieces + threads - 1) / threads;
    gather_sum<<<static_cast<unsigned>(static_cast<std::int64_t>(d.tokens) * slices), threads, 0, stream>>>(
        d.top_k, pieces, slices, row_of, weights, reinterpret_cast<const uint4*>(y), reinterpret_cast<uint4*>(out));
    check_launch("combine forward", describe(d, h));
}

void backward(const permute::Dims& d, int h, const int* row_of, const float* weights, const __nv_bfloat16* y,
              const __nv_bfloat16* dout, __nv_bfloat16* dy, float* dweights, cudaStream_t stream) {
    check_width(d, h);
    if (d.tokens == 0) return;
    const std::int64_t choices = static_cast<std::int64_t>(d.tokens) * d.top_k;
    spread<<<static_cast<unsigned>((choices + 7) / 8), 256, 0, stream>>>(
        choices, d.top_k, h / 8, row_of, weights, reinterpret_cast<const uint4*>(y),
        reinterpret_cast<const uint4*>(dout), reinterpret_cast<uint4*>(dy), dweights);
    check_launch("combine backward", describe(d, h));
}

} // namespace moeplan::kernels::combine
