/// \file
/// One warp per choice, 16-byte accesses; bytes 10 i per row. The activation is recomputed from `pre`.
#include "kernels/base/ptx/matrix.cuh"
#include "kernels/grouped_linear/cuda.hpp"

namespace moeplan::kernels::grouped_linear {
namespace {

__global__ void __launch_bounds__(256) activation_backward(GatedBackward a) {
    const std::int64_t choice = blockIdx.x * 8ll + threadIdx.x / 32;
    if (choice >= a.choices) return;
    const int lane = threadIdx.x % 32;
    const std::int64_t row = a.row_of != nullptr ? a.row_of[choice] : choice;
    const float w = a.weights != nullptr ? a.weights[choice] : 1.0f;
    float product = 0;
    if (row >= 0) {
        const int pieces = a.width / 8;
        const uint4* gate = reinterpret_cast<const uint4*>(a.pre + row * 2 * a.width);
        const uint4* g = reinterpret_cast<const uint4*>(a.g + row * a.width);
        uint4* dgate = reinterpret_cast<uint4*>(a.dpre + row * 2 * a.width);
#pragma unroll 2
        for (int p = lane; p < pieces; p += 32) {
            const uint4 va = gate[p], vb = gate[pieces + p], vg = g[p];
            uint4 da, db;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float out[2][2];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const auto half = [&](std::uint32_t v) { return __uint_as_float(h == 0 ? v << 16 : v & 0xffff0000u); };
                    const float x = half((&va.x)[i]), y = half((&vb.x)[i]), up = half((&vg.x)[i]);
                    const auto d = gated_gradient(a.activation, x, y);
                    product = fmaf(up, gated_activation(a.activation, x, y), product);
                    out[0][h] = w * up * d.da;
                    out[1][h] = w * up * d.db;
                }
                (&da.x)[i] = ptx::pack_bf16(out[0][0], out[0][1]);
                (&db.x)[i] = ptx::pack_bf16(out[1][0], out[1][1]);
            }
            dgate[p] = da;
            dgate[pieces + p] = db;
        }
    }
    if (a.dweights == nullptr) return;
#pragma unroll
    for (int o = 16; o > 0; o /= 2) product += __shfl_xor_sync(0xffffffffu, product, o);
    if (lane == 0) a.dweights[choice] = product;
}

} // namespace

void gated_backward(const GatedBackward& a, cudaStream_t stream) {
    const std::string shape = "choices=" + std::to_string(a.choices) + " width=" + std::to_string(a.width);
    if (a.width <= 0 || a.width % 8 != 0)
        throw UnsupportedShape("gated activation backward [" + shape + "]: the width must be a multiple of 8; pad it");
    if (a.choices == 0) return;
    activation_backward<<<static_cast<unsigned>((a.choices + 7) / 8), 256, 0, stream>>>(a);
    check_launch("gated activation backward", shape);
}

} // namespace moeplan::kernels::grouped_linear
