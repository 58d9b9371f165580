#pragma once
/// What a call of a block holds besides its values while it runs. Any implementation holds the contract's `workspace`; this project's kernels on a
/// device hold what `device_workspace` says, and dense copies of the operands that do not lie as they read them.

#include <functional>

#include "core/spec/runtime.hpp"
#include "sim/program/block.hpp"

namespace moeplan {

/// Bytes of one call of the block that it was made for.
using CallScratch = std::function<Bytes(const BlockNode&)>;

/// Memory through which the operands of a call pass because a kernel takes dense tensors of the contract's types, each on 256 bytes: columns of
/// another value (`split`), and gradients of weights, which are accumulated in another type than they are made in. For the backward pass of `split`
/// itself: the largest piece that has to be copied into its place.
[[nodiscard]] CallScratch dense_copies(const Block& block);

/// Bytes that pass through those copies, for their time: as above, but of `split` every piece. Nothing for runtimes whose kernels take strides.
[[nodiscard]] CallScratch copied_bytes(const Block& block, const Runtime& runtime);

/// By the runtime: its own kernels' scratch and copies, or the contract's.
[[nodiscard]] CallScratch call_scratch(const Block& block, const Runtime& runtime);

/// `block_memory` (block.hpp) with what the runtime's calls hold.
[[nodiscard]] BlockMemory block_memory(const Block& block, const Problem& problem, const Plan& plan);
/// The peak of a block that `side_by_side` made of a forward and a backward pass.
[[nodiscard]] PassMemory side_by_side_memory(const Block& both, const Block& forward, const Block& backward, const Runtime& runtime);

}  // namespace moeplan
