#pragma once
/// The CUDA backend of the catalogue, called as the references are (kernels/reference.hpp) but over device pointers whose contents have
/// the types that the contract names. Everything is queued on `stream`; nothing synchronises, allocates or keeps state.
///
/// How a call passes its operands: `values` has one pointer for each operand of the contract in its order, `gradients` likewise. Forward
/// needs all values. Backward needs the operands that the contract says it needs and the gradients of the outputs, and overwrites each
/// gradient that is not null (in its operand's type); null means: not wanted, or no gradient arrived. Outputs may overwrite inputs of the
/// same shape in pointwise operators and the optimizer. Views need only the alignment of their type; 16 bytes make them fast.
/// A tensor of no elements may be null.

#include <span>
#include <string>

#include "kernels/base/cuda.hpp"
#include "kernels/catalogue.hpp"
#include "kernels/cuda_frame.hpp"

namespace moeplan::cuda {

/// Why this operator with these fields has no CUDA kernel, in one sentence; empty if it has one.
[[nodiscard]] std::string refusal(const Op& op);
/// The same on such a device: what needs Hopper's tensor copies and products, or more shared memory than a block of it has, is refused there.
/// Devices from compute capability 8.0 on run everything else, in its form of mma.sync where Hopper has one of its own.
[[nodiscard]] std::string refusal(const Op& op, const kernels::DeviceFacts& device);

/// Scratch that a call needs here, aligned to 256 bytes: partial sums and sorted orders, besides the contract's `workspace`.
[[nodiscard]] Bytes workspace(const Op& op, Pass pass, Wants wants = {});

/// Queues the call; linear layers and the loss need `products`. Throws InputError, naming the operator, for what has no kernel or an operand that is missing; CudaError if a launch fails.
/// A view that must start on 16 bytes and does not is refused too, with the word "aligned". `device`: what the call may use of the current one; all of it where null.
void forward(const Op& op, std::span<void* const> values, void* workspace, cudaStream_t stream, Products* products = nullptr, const Ragged& ragged = {},
             const kernels::DeviceFacts* device = nullptr);
void backward(const Op& op, std::span<void* const> values, std::span<void* const> gradients, void* workspace, cudaStream_t stream, Products* products = nullptr, const Ragged& ragged = {},
              const kernels::DeviceFacts* device = nullptr);

/// Each operator's own file defines these four.
#define MOEPLAN_CUDA_OPERATOR(Operator)                                          \
  void forward(const op::Operator& op, const Frame& frame);                      \
  void backward(const op::Operator& op, const Frame& frame);                     \
  [[nodiscard]] std::string refusal(const op::Operator& op);                     \
  [[nodiscard]] std::int64_t scratch(const op::Operator& op, Pass pass, Wants wants);
#include "kernels/cuda_list.inc"
#undef MOEPLAN_CUDA_OPERATOR

}  // namespace moeplan::cuda
