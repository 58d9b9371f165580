/// \file
/// What the GPU tests of the mixture-of-experts operators share.
#pragma once

#include "kernels/base/cuda.hpp"

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#define MOEPLAN_NEEDS_GPU()                                                                  \
    if (moeplan::kernels::device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine"

namespace moeplan::tests {

using kernels::DeviceBuffer;
using bf16 = __nv_bfloat16;

/// Values that bf16 holds exactly, so that references see what the kernel sees.
inline std::vector<double> bf16_values(std::size_t count, unsigned seed, double scale = 1.0) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<double> normal(0.0, scale);
    std::vector<double> values(count);
    for (double& v : values) v = __bfloat162float(__float2bfloat16(static_cast<float>(normal(engine))));
    return values;
}
inline DeviceBuffer upload_bf16(const std::vector<double>& values) {
    std::vector<bf16> narrow(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) narrow[i] = __float2bfloat16(static_cast<float>(values[i]));
    return DeviceBuffer::of(narrow);
}
template <typename T>
DeviceBuffer upload_as(const std::vector<double>& values) {
    return DeviceBuffer::of(std::vector<T>(values.begin(), values.end()));
}
inline std::vector<double> download_bf16(const DeviceBuffer& buffer) {
    const auto narrow = buffer.download<bf16>();
    std::vector<double> values(narrow.size());
    for (std::size_t i = 0; i < narrow.size(); ++i) values[i] = __bfloat162float(narrow[i]);
    return values;
}
/// A buffer of NaNs (bf16 and fp32) or -1 (int).
inline DeviceBuffer poisoned(std::size_t bytes) {
    DeviceBuffer buffer(bytes);
    buffer.fill(0xff);
    return buffer;
}

/// ||got - want|| / ||want||, NaN if anything is NaN.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return want.empty() ? 0.0 : std::sqrt(difference / size);
}

} // namespace moeplan::tests
