#pragma once
/// Scratch of calls whose forms differ by device in what they need.

#include "kernels/base/cuda.hpp"
#include "kernels/catalogue.hpp"

namespace moeplan::cuda {

/// `workspace` of kernels/cuda.hpp, which is Hopper's, on such a device: experts in FP8 are read back first where the product cannot expand them.
[[nodiscard]] Bytes workspace(const Op& op, Pass pass, Wants wants, const kernels::DeviceFacts& device);

}  // namespace moeplan::cuda
