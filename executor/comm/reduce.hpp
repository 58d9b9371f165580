#pragma once
/// Elementwise reduction of host buffers in a fixed order.

#include <span>

#include "core/dtype.hpp"
#include "executor/comm/communicator.hpp"

namespace moeplan {

[[nodiscard]] float bf16_to_float(std::uint16_t bits);
/// Round to nearest even; NaN stays NaN.
[[nodiscard]] std::uint16_t float_to_bf16(float value);

/// Elements [begin, end) of `parts[0]`, `parts[1]`, ... reduced in that order into element 0 and up of each of `outputs`. f32 and
/// bf16 accumulate in f32 and round once at the end; integer sums wrap. `max` and `min` carry NaN. Outputs may alias the same
/// elements of the parts.
void reduce_slice(std::span<const void* const> parts, std::int64_t begin, std::int64_t end, DType dtype, Reduction reduction,
                  std::span<void* const> outputs);

}  // namespace moeplan
