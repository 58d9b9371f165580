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

/// Median milliseconds of each of `works` on the default stream, taken in turn, so that all meet the same clocks: under a
/// power limit what runs later runs slower. Before each sample 192 MB are written, which empties the L2 cache and hides
/// the launch.
inline std::vector<float> cold_medians(const std::vector<std::function<void()>>& works, int samples = 11) {
    static DeviceBuffer flush(192u << 20);
    for (const auto& work : works) work();
    std::vector<std::vector<float>> times(works.size());
    for (int i = 0; i < samples; ++i)
        for (std::size_t w = 0; w < works.size(); ++w) {
            Event begin, end;
            flush.fill(i);
            begin.record(nullptr);
            works[w]();
            end.record(nullptr);
            end.synchronize();
            times[w].push_back(end.milliseconds_since(begin));
        }
    std::vector<float> medians;
    for (auto& t : times) {
        std::nth_element(t.begin(), t.begin() + samples / 2, t.end());
        medians.push_back(t[samples / 2]);
    }
    return medians;
}
inline float cold_median(const std::function<void()>& work, int samples = 11) { return cold_medians({work}, samples)[0]; }

} // namespace moeplan::bench
