#pragma once
/// Rows that lie in runs, moved together or apart: the order of experts and that of senders (executor/walk/exchange.hpp).

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "executor/backend/backend.hpp"

namespace moeplan::cuda {

/// Rows of `bytes` bytes each: those of `together` one after the other are those of `runs` in `apart`, or become them (`gather`) from there. The runs travel
/// with the launch, up to a thousand with each, so that nothing is copied beforehand. Throws InputError where a row's number does not fit 32 bits.
void copy_rows(std::byte* together, std::byte* apart, std::int64_t bytes, std::span<const RowRun> runs, bool gather, cudaStream_t stream);

}  // namespace moeplan::cuda
