#pragma once
/// Tiles in shared memory for mma.sync (sm_80 on): `rows` rows of bf16 in panels of 64 columns, each panel 128-byte
/// rows with the 128-byte swizzle, loaded by 16-byte asynchronous copies or, where rows do not start on 16 bytes, value
/// by value. What lies outside the tensor arrives as zero.

#include "kernels/attention/geometry.cuh"
#include "kernels/base/ptx/async_copy.cuh"
#include "kernels/base/ptx/matrix.cuh"
#include "kernels/base/swizzle.cuh"

namespace moeplan::cuda::attention {

namespace ptx = kernels::ptx;

/// Rows of one head in global memory: `width` columns, then `more_width` of another tensor (the shared part of a key).
struct Rows {
  const bf16* base;
  i64 pitch;
  int width;
  const bf16* more = nullptr;
  i64 more_pitch = 0;
  int more_width = 0;
};

template <int rows>
__device__ __forceinline__ std::uint32_t chunk_at(std::uint32_t tile, int row, int column) {
  return tile + static_cast<std::uint32_t>(column / 64 * rows * 128) +
         kernels::swizzle_128(static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(column % 64 / 8));
}

/// Rows [first, first + rows) to the tile; rows from `end` on are zero. All threads of the block; ends without waiting.
template <int rows, int columns, int threads>
__device__ __forceinline__ void load_tile(std::uint32_t tile, const Rows& from, i64 first, i64 end, bool vectors) {
  constexpr int chunks = columns / 8;
  const int width = from.width + from.more_width;
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * chunks; i += threads) {
    const int row = i / chunks, column = i % chunks * 8;
    const std::uint32_t to = chunk_at<rows>(tile, row, column);
    const bool valid = first + row < end && column < width;
    const bf16* line = from.base + (first + row) * from.pitch;
    const bf16* more = from.more + (first + row) * from.more_pitch;
    if (vectors) {
      const bf16* source = column < from.width ? line + column : more + (column - from.width);
      ptx::copy_16(to, valid ? source : from.base, valid);
      continue;
    }
    std::uint32_t word[4] = {};
    if (valid) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int c = column + j;
        if (c >= width) continue;
        const bf16 value = c < from.width ? line[c] : more[c - from.width];
        word[j / 2] |= static_cast<std::uint32_t>(__bfloat16_as_ushort(value)) << (j % 2 * 16);
      }
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
  }
}

/// c[16, n] += a b^T of rows [row, row + 16) of tile a and the n rows of tile b, over `depth` columns of both.
template <int rows_a, int n, int depth>
__device__ __forceinline__ void multiply_rows(float (&c)[n / 8][4], std::uint32_t a, int row, std::uint32_t b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < depth; k += 16) {
    std::uint32_t left[4];
    ptx::load_matrix_x4(left, chunk_at<rows_a>(a, row + lane % 16, k + lane / 16 * 8));
#pragma unroll
    for (int j = 0; j < n; j += 16) {
      std::uint32_t both[4];
      ptx::load_matrix_x4(both, chunk_at<n>(b, j + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8));
      ptx::mma_bf16(c[j / 8], left, {both[0], both[1]});
      ptx::mma_bf16(c[j / 8 + 1], left, {both[2], both[3]});
    }
  }
}

/// c[16, n] += a b of a fragment a[16, rows] and the first n columns of tile b.
template <int rows, int n>
__device__ __forceinline__ void multiply_columns(float (&c)[n / 8][4], const std::uint32_t (&a)[rows / 16][4],
                                                 std::uint32_t b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < rows; k += 16)
#pragma unroll
    for (int j = 0; j < n; j += 16) {
      std::uint32_t both[4];
      ptx::load_matrix_x4_transposed(both, chunk_at<rows>(b, k + lane % 16, j + lane / 16 * 8));
      ptx::mma_bf16(c[j / 8], a[k / 16], {both[0], both[1]});
      ptx::mma_bf16(c[j / 8 + 1], a[k / 16], {both[2], both[3]});
    }
}

/// The accumulator of one product as the left operand of the next, rounded to bf16.
template <int n>
__device__ __forceinline__ void as_left(const float (&c)[n / 8][4], std::uint32_t (&a)[n / 16][4]) {
#pragma unroll
  for (int i = 0; i < n / 16; ++i) {
    a[i][0] = ptx::pack_bf16(c[2 * i][0], c[2 * i][1]), a[i][1] = ptx::pack_bf16(c[2 * i][2], c[2 * i][3]);
    a[i][2] = ptx::pack_bf16(c[2 * i + 1][0], c[2 * i + 1][1]),
    a[i][3] = ptx::pack_bf16(c[2 * i + 1][2], c[2 * i + 1][3]);
  }
}

/// Two neighbouring columns of a row of `width` columns.
__device__ __forceinline__ void store_pair(bf16* row, int column, int width, float a, float b, bool vectors) {
  if (vectors && column + 1 < width) {
    *reinterpret_cast<std::uint32_t*>(row + column) = ptx::pack_bf16(a, b);
  } else {
    if (column < width) row[column] = __float2bfloat16(a);
    if (column + 1 < width) row[column + 1] = __float2bfloat16(b);
  }
}

/// 2^x, relative error 2^-22; results under 2^-126 are zero. The library's form scales around them, which costs three
/// more instructions.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// A logit in units of log 2 from the dot product, and the derivative of the softcap there.
struct Logit {
  float value, slope;
};
template <bool capped>
__device__ __forceinline__ Logit logit(const Problem& p, float dot) {
  if constexpr (capped) {
    const float x = dot * p.scale / p.cap, e = __expf(2 * fminf(fabsf(x), 20.0f));
    const float s = fabsf(x) < 0.02f ? x * (1 - x * x * (1.0f / 3)) : copysignf(1 - 2 / (e + 1), x);
    return {p.cap * s * log2_e, 1 - s * s};
  } else {
    return {dot * (p.scale * log2_e), 1};
  }
}

template <int d_qk, int d_v>
struct HeadSize {
  static constexpr int qk = d_qk, v = d_v;
  static constexpr int stream =
      d_qk > 128 ? 32 : 64;  ///< rows of the streamed tiles of the backward: the registers decide
};

/// Calls f(HeadSize) with the smallest padded size that holds the heads.
template <class F>
void with_head_size(int d_qk, int d_v, F&& f) {
  if (d_qk <= 64 && d_v <= 64)
    f(HeadSize<64, 64>{});
  else if (d_qk <= 128 && d_v <= 128)
    f(HeadSize<128, 128>{});
  else if (d_qk <= 192 && d_v <= 128)
    f(HeadSize<192, 128>{});
  else
    f(HeadSize<256, 256>{});
}

}  // namespace moeplan::cuda::attention
