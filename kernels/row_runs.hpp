#pragma once
/// What one launch that puts rows in order takes (executor/cuda/rows.cu), for whoever prices it.

namespace moeplan {

/// Runs of rows: with where each begins, 8 KB of the 32,764 bytes that a kernel's parameters may take (CUDA 12.1 on).
inline constexpr int kRowRuns = 1020;

}  // namespace moeplan
