#pragma once
/// Frozen weights whose stored bits a device's kernels read in an order of their own: moved once, where they lie, when they are written.

#include <cstddef>
#include <span>

#include "kernels/base/cuda.hpp"
#include "kernels/catalogue.hpp"

namespace moeplan::cuda {

/// Whether the kernels of this operator read its weight so: `grouped_linear` on MXFP4 and FP8 of widths that they take as stored.
[[nodiscard]] bool reads_arranged(const Op& op);

/// The payload of MXFP4 or FP8 weights, bytes[count] at 16-byte alignment, count a multiple of 16, from the order of the format to that of the kernels.
void arrange(DType type, std::byte* payload, std::int64_t count, cudaStream_t stream);

/// The way back, on the host.
void restore(DType type, std::span<std::byte> payload);

}  // namespace moeplan::cuda
