#pragma once
/// How much scratch a call of KDA may take on the GPU: shared by the kernels' host side and the planner's account.

#include <cstdint>

namespace moeplan::kernels::kda {

/// Heads are worked on in groups that fit, each a scan of its own: 2 GiB lets 23 heads of 65,536 tokens go at once through the backward (92 MB a head),
/// 256 MiB two, which left most of a device idle (5 times the time).
inline constexpr std::int64_t kScratchLimit = std::int64_t{2} << 30;

}  // namespace moeplan::kernels::kda
