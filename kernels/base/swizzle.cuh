#pragma once
/// The 128-byte swizzle that tensor copies, wgmma descriptors and ldmatrix share: in a tile of 128-byte rows that
/// starts on a 1024-byte boundary, the 16-byte chunk c of row r lies at chunk c xor (r mod 8). Eight rows read at the
/// same chunk then touch all 32 banks.

#include <cstdint>

namespace moeplan::kernels {

/// Byte offset in a 128-byte-row tile of the 16-byte chunk `chunk` (0 to 7) of row `row`.
__host__ __device__ constexpr std::uint32_t swizzle_128(std::uint32_t row, std::uint32_t chunk) {
    return row * 128 + ((chunk ^ (row & 7)) << 4);
}
/// The same for 64-byte rows (512-byte boundary; chunk 0 to 3).
__host__ __device__ constexpr std::uint32_t swizzle_64(std::uint32_t row, std::uint32_t chunk) {
    return row * 64 + ((chunk ^ ((row >> 1) & 3)) << 4);
}
/// The same for 32-byte rows (256-byte boundary; chunk 0 or 1).
__host__ __device__ constexpr std::uint32_t swizzle_32(std::uint32_t row, std::uint32_t chunk) {
    return row * 32 + ((chunk ^ ((row >> 2) & 1)) << 4);
}

} // namespace moeplan::kernels
