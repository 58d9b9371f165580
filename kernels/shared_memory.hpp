#pragma once
/// Dynamic shared memory of the blocks that take more than every device from compute capability 8.0 on has (99 KB on 8.6 and 8.9, 163 on 8.0,
/// 227 on 9.0), so that a call is refused before anything of it is launched. Each kernel's file holds its number to its tiles.

#include <cstddef>

namespace moeplan::cuda::shared_memory {

inline constexpr std::size_t wide_attention = 196864;     ///< backward of heads over 256 columns
inline constexpr std::size_t latent_attention = 229376;   ///< keys chosen query by query that are their own values
inline constexpr std::size_t scan_wide_states = 114688;   ///< backward of Mamba-2 with states over 64 entries
inline constexpr std::size_t scan_wide_heads = 163840;    ///< the same with heads over 64 columns

}  // namespace moeplan::cuda::shared_memory
