#pragma once
/// Scratch of a call in this project's CUDA kernels, by arithmetic alone: what the planner counts on a machine without a device, where the
/// contract's `workspace` is what any implementation of the operator needs. `cuda_tests` hold it equal to what the kernels ask for.

#include "kernels/catalogue.hpp"

namespace moeplan {

/// Bytes besides the operands; the contract's for an operator without a CUDA kernel.
[[nodiscard]] Bytes device_workspace(const Op& op, Pass pass, Wants wants = {});

}  // namespace moeplan
