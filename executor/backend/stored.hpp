#pragma once
/// Frozen weights as they are stored, on the host: the payload of all rows, then the scales, together `stored_bytes` (kernels/quantise/stored.cuh has
/// the layout). Matrices are the last two dimensions; what lies before stacks them.

#include <cstddef>
#include <span>

#include "core/dtype.hpp"

namespace moeplan {

/// Types that can be held so: fp8 (E4M3 under one f32 scale for 128 x 128) and mxfp4 (E2M1 under one power of two for 32 columns).
[[nodiscard]] bool can_be_held_stored(DType type);

/// Bytes of the payload; the scales lie behind.
[[nodiscard]] std::int64_t payload_bytes(DType type, const Shape& shape);

/// `to` has the shape's elements.
void decode_stored(DType type, const Shape& shape, const std::byte* from, std::span<float> to);
/// To the nearest value under the scale of each block: largest / 448 (fp8), 2^(floor(log2 largest) - 2) (mxfp4). As kernels/quantise on a device does, to
/// the bit; what was decoded from mxfp4 comes out as the same values.
void encode_stored(DType type, const Shape& shape, std::span<const float> from, std::byte* to);

}  // namespace moeplan
