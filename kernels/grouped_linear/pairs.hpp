#pragma once
/// How blocks of `grouped_linear` work, by the mean rows of an expert: shared by the kernels' host side and by what prices them (sim/cost).

#include <cstdint>

namespace moeplan::kernels::grouped_linear {

/// Pairs halve the weight traffic from L2 to the multiprocessors when an expert has two token tiles or more. Below that
/// there is nothing to share; far above it the launch is bound by arithmetic and the lockstep of two blocks costs up to
/// 10 % (measured at 1024 rows per expert). The mean decides for all experts.
[[nodiscard]] constexpr bool takes_pairs(std::int64_t rows, std::int64_t experts) {
  return rows > 160 * experts && rows <= 512 * experts;
}

/// MXFP4 experts of so few rows are computed in tiles of as many, by two blocks a multiprocessor (packed_kernel.cuh).
inline constexpr int few_tokens = 32;
[[nodiscard]] constexpr bool takes_few(std::int64_t rows, std::int64_t experts) { return rows <= few_tokens * experts; }

}  // namespace moeplan::kernels::grouped_linear
