/// \file
/// The order of FP8 codes, and the way from it to bf16: on any device.
#include "kernels/base/ptx/matrix.cuh"
#include "kernels/grouped_linear/fp8.hpp"
#include "kernels/grouped_linear/fp8_cuda.hpp"

namespace moeplan::kernels::grouped_linear::fp8 {
namespace {

__global__ void __launch_bounds__(256) arrange_blocks(std::int64_t count, uint4* blocks) {
    const std::int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= count) return;
    const uint4 v = blocks[i];
    std::uint32_t out[4] = {};
#pragma unroll
    for (int c = 0; c < 16; ++c) out[place(c) / 4] |= ((&v.x)[c / 4] >> (c % 4 * 8) & 255u) << (place(c) % 4 * 8);
    blocks[i] = make_uint4(out[0], out[1], out[2], out[3]);
}

/// 16 columns a thread.
__global__ void __launch_bounds__(256) expand_blocks(std::int64_t count, std::int64_t across, std::int64_t wide, const uint4* codes, const float* scales, uint4* plain) {
    const std::int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= count) return;
    const std::int64_t row = i / across, column = i % across * 16;
    const uint4 v = codes[i];
    const float scale = __ldg(scales + row / 128 * wide + column / 128);
    std::uint32_t out[8];
#pragma unroll
    for (int c = 0; c < 16; c += 2) {
        const auto value = [&](int at) {
            const std::uint32_t code = (&v.x)[place(at) / 4] >> (place(at) % 4 * 8) & 255u;
            return __uint_as_float((code & 128u) << 24 | (code & 127u) << 20) * 0x1p120f * scale;
        };
        out[c / 2] = ptx::pack_bf16(value(c), value(c + 1));
    }
    plain[2 * i] = make_uint4(out[0], out[1], out[2], out[3]);
    plain[2 * i + 1] = make_uint4(out[4], out[5], out[6], out[7]);
}

} // namespace

void arrange_weights(std::uint8_t* codes, std::int64_t bytes, cudaStream_t stream) {
    const std::int64_t count = bytes / 16;
    if (count == 0) return;
    arrange_blocks<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(count, reinterpret_cast<uint4*>(codes));
    check_launch("FP8 weights", "bytes=" + std::to_string(bytes));
}

void read_back(const std::uint8_t* codes, const float* scales, std::int64_t rows, std::int64_t columns, bf16* plain, cudaStream_t stream) {
    const std::int64_t count = rows * (columns / 16);
    if (count == 0) return;
    expand_blocks<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(count, columns / 16, (columns + 127) / 128, reinterpret_cast<const uint4*>(codes), scales,
                                                                                  reinterpret_cast<uint4*>(plain));
    check_launch("FP8 weights", "rows=" + std::to_string(rows) + " columns=" + std::to_string(columns));
}

} // namespace moeplan::kernels::grouped_linear::fp8
