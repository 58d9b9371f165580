#pragma once
/// What the Hopper kernels share: panels of 64 columns that tensor copies fill and wgmma reads, softmax masks on its
/// accumulators, and the tensor maps. Tiles that reach past a sequence hold rows of its neighbour, whose weights are
/// zero; heads narrower than the padded size are filled up with zeros by the copy itself.

#include "kernels/attention/tiles.cuh"
#include "kernels/base/ptx.cuh"
#include "kernels/base/tma.hpp"

namespace moeplan::cuda::attention {

constexpr int hopper_threads = 384;  ///< one warpgroup that loads, two that multiply
constexpr int group_rows = 64;       ///< of one multiplying warpgroup
constexpr int block_rows = 2 * group_rows;

/// Maps of [rows, heads, columns] with a box of 64 columns of one head and some rows.
struct Maps {
  CUtensorMap q, k, k_shared, v, dy;
};

inline CUtensorMap head_map(const bf16* base, int rows, int heads, int columns, int box_rows, const char* name) {
  const auto width = static_cast<std::uint64_t>(columns) * 2;
  return kernels::make_tensor_map<3>({.type = kernels::TensorType::bf16,
                                      .base = base,
                                      .sizes = {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(heads),
                                                static_cast<std::uint64_t>(rows)},
                                      .strides = {width, width * static_cast<std::uint64_t>(heads)},
                                      .box = {64, 1, static_cast<std::uint32_t>(box_rows)}},
                                     name);
}

/// `rows` rows of a head in panels of 64 columns; columns from `own` on come from the shared key.
template <int rows, int columns>
__device__ __forceinline__ void load_panels(char* to, const CUtensorMap* map, int head, int row,
                                            ptx::Barrier* barrier) {
#pragma unroll
  for (int c = 0; c < columns; c += 64) ptx::tensor_load_3d(to + c * rows * 2, map, c, head, row, barrier);
}
template <int rows, int columns>
__device__ __forceinline__ void load_key_panels(char* to, const Maps& maps, const Problem& p, int head, int row,
                                                ptx::Barrier* barrier) {
#pragma unroll
  for (int c = 0; c < columns; c += 64) {
    if (p.shared != 0 && c >= p.own)
      ptx::tensor_load_3d(to + c * rows * 2, &maps.k_shared, c - p.own, 0, row, barrier);
    else
      ptx::tensor_load_3d(to + c * rows * 2, &maps.k, c, head, row, barrier);
  }
}

/// c[64, n] = or += a b^T, a 64 rows of a tile of `rows_a` rows, b a tile of n rows, over `depth` columns of both.
template <int rows_a, int n, int depth>
__device__ __forceinline__ void wgmma_rows(float (&c)[n / 2], std::uint32_t a, std::uint32_t b) {
  const std::uint64_t left = ptx::wgmma_descriptor(a), right = ptx::wgmma_descriptor(b);
#pragma unroll
  for (int k = 0; k < depth; k += 16)
    ptx::Wgmma<n>::ss(c, ptx::wgmma_advance(left, static_cast<std::uint32_t>(k / 64 * rows_a * 128 + k % 64 * 2)),
                      ptx::wgmma_advance(right, static_cast<std::uint32_t>(k / 64 * n * 128 + k % 64 * 2)), k > 0);
}

/// Rows of a warp, 16 from `row` on, of a tile of `rows_a` rows as left operands: half the shared-memory reads of
/// products that use them again.
template <int rows_a, int depth>
__device__ __forceinline__ void load_left(std::uint32_t (&a)[depth / 16][4], std::uint32_t tile, int row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < depth; k += 16)
    ptx::load_matrix_x4(a[k / 16], chunk_at<rows_a>(tile, row + lane % 16, k + lane / 16 * 8));
}
/// c[64, n] = a b^T, a[64, depth] in registers, b a tile of n rows.
template <int n, int depth>
__device__ __forceinline__ void wgmma_left_rows(float (&c)[n / 2], const std::uint32_t (&a)[depth / 16][4],
                                                std::uint32_t b) {
  const std::uint64_t right = ptx::wgmma_descriptor(b);
#pragma unroll
  for (int k = 0; k < depth; k += 16)
    ptx::Wgmma<n>::rs(c, a[k / 16],
                      ptx::wgmma_advance(right, static_cast<std::uint32_t>(k / 64 * n * 128 + k % 64 * 2)), k > 0);
}

/// c[64, n] += a b, a[64, rows] in registers, b a tile of `rows` rows and n columns.
template <int rows, int n>
__device__ __forceinline__ void wgmma_columns(float (&c)[n / 2], const std::uint32_t (&a)[rows / 16][4],
                                              std::uint32_t b) {
  const std::uint64_t right = ptx::wgmma_descriptor(b, 1024, rows * 128);
#pragma unroll
  for (int k = 0; k < rows; k += 16)
    ptx::Wgmma<n>::template rs<ptx::Major::mn>(c, a[k / 16],
                                               ptx::wgmma_advance(right, static_cast<std::uint32_t>(k * 128)), true);
}

/// An accumulator as the left operand of the next product, rounded to bf16.
template <int n>
__device__ __forceinline__ void wgmma_left(const float (&c)[n / 2], std::uint32_t (&a)[n / 16][4]) {
#pragma unroll
  for (int i = 0; i < n / 16; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) a[i][e] = ptx::pack_bf16(c[8 * i + 2 * e], c[8 * i + 2 * e + 1]);
}

__device__ __forceinline__ char* aligned_memory(char* memory) {
  return memory + (1024 - ptx::shared_address(memory) % 1024) % 1024;
}

}  // namespace moeplan::cuda::attention
