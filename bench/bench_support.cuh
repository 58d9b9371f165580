/// \file
/// What the GPU benchmarks share: hashed random data, cold-cache medians, and sampled comparison with fp64.
#pragma once

#include "kernels/base/cuda.hpp"

#include <algorithm>
#include <cuda_bf16.h>
#include <functional>
#include <vector>

namespace moeplan::bench {

using kernels::DeviceBuffer;
using kernels::Event;
using bf16 = __nv_bfloat16;

/// Uniform in [-1, 1), a pure function of (seed, index).
__host__ __device__ inline float noise(std::uint32_t seed, std::uint64_t index) {
    std::uint64_t z = index + seed * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return static_cast<float>(static_cast<std::int32_t>(z >> 32)) * (1.0f / 2147483648.0f);
}

static __global__ void fill_noise(bf16* to, std::size_t count, std::uint32_t seed, float scale) {
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += static_cast<std::size_t>(gridDim.x) * blockDim.x)
        to[i] = __float2bfloat16(noise(seed, i) * scale);
}
static __global__ void fill_noise(float* to, std::size_t count, std::uint32_t seed, float scale) {
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += static_cast<std::size_t>(gridDim.x) * blockDim.x)
        to[i] = noise(seed, i) * scale;
}
static __global__ void fill_bytes(std::uint8_t* to, std::size_t count, std::uint32_t seed, int low, int span) {
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += static_cast<std::size_t>(gridDim.x) * blockDim.x)
        to[i] = static_cast<std::uint8_t>(low + static_cast<int>((noise(seed, i) * 0.5f + 0.5f) * span) % span);
}

template <typename T>
DeviceBuffer random_buffer(std::size_t count, std::uint32_t seed, float scale) {
    DeviceBuffer buffer(std::max<std::size_t>(count, 8) * sizeof(T));
    fill_noise<<<1056, 256>>>(buffer.get<T>(), count, seed, scale);
    kernels::check_launch("fill_noise", "");
    return buffer;
}

/// Median milliseconds of `work` on the default stream. Before each sample 192 MB are written, which empties the L2
/// cache and hides the launch.
inline float cold_median(const std::function<void()>& work, int samples = 11) {
    static DeviceBuffer flush(192u << 20);
    work();
    std::vector<float> times;
    for (int i = 0; i < samples; ++i) {
        Event begin, end;
        flush.fill(i);
        begin.record(nullptr);
        work();
        end.record(nullptr);
        end.synchronize();
        times.push_back(end.milliseconds_since(begin));
    }
    std::nth_element(times.begin(), times.begin() + samples / 2, times.end());
    return times[samples / 2];
}

} // namespace moeplan::bench
