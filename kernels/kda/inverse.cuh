#pragma once
/// Inverse of a unit lower triangular 64 x 64 matrix in shared memory: its four diagonal 16 x 16 blocks by forward
/// substitution in fp32, then the blocks below by tf32 products, first within 32 x 32, then between them.

#include "kernels/base/ptx.cuh"

namespace moeplan::kernels::kda {

inline constexpr int l_stride = 68;  ///< floats per row

/// In place, by one warp: inverse of the unit lower triangular 16 x 16 block whose strict lower part is at `l`.
__device__ __forceinline__ void invert_16(float* l) {
  const int column = threadIdx.x & 15;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float even = i == column ? 1.0f : 0.0f, odd = 0.0f;
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 y = *reinterpret_cast<const float4*>(l + i * l_stride + j);
      even -= y.x * x[j];
      if (j + 1 < i) odd -= y.y * x[j + 1];
      if (j + 2 < i) even -= y.z * x[j + 2];
      if (j + 3 < i) odd -= y.w * x[j + 3];
    }
    x[i] = even + odd;
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; ++i) l[i * l_stride + column] = x[i];
  __syncwarp();
}

/// c += sign a b for 16 x 16 fp32 blocks in shared memory (tf32 products).
__device__ __forceinline__ void multiply_16(float (&c)[2][4], const float* a, const float* b, float sign) {
  const int lane = threadIdx.x & 31, row = lane >> 2, k = lane & 3;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const float* left = a + row * l_stride + 8 * s + k;
    const std::uint32_t x[4] = {__float_as_uint(sign * left[0]), __float_as_uint(sign * left[8 * l_stride]),
                                __float_as_uint(sign * left[4]), __float_as_uint(sign * left[8 * l_stride + 4])};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* right = b + (8 * s + k) * l_stride + 8 * n + row;
      const std::uint32_t y[2] = {__float_as_uint(right[0]), __float_as_uint(right[4 * l_stride])};
      ptx::mma_tf32(c[n], x, y);
    }
  }
}
__device__ __forceinline__ void store_16(float* out, const float (&c)[2][4]) {
  const int lane = threadIdx.x & 31, row = lane >> 2, column = 2 * (lane & 3);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    out[row * l_stride + 8 * n + column] = c[n][0], out[row * l_stride + 8 * n + column + 1] = c[n][1];
    out[(row + 8) * l_stride + 8 * n + column] = c[n][2], out[(row + 8) * l_stride + 8 * n + column + 1] = c[n][3];
  }
}

/// In place: (I + L)^-1, lower triangle, by warps 0 to 3; the block's other warps only take part in the barriers, the
/// same ones, as synccheck asks. A named barrier of the four would do, but compute-sanitizer's racecheck loses the
/// order of later block barriers behind it (docs/kernels.md), and the others have nothing to do meanwhile.
__device__ __forceinline__ void invert_64(float* l) {
  const int warp = threadIdx.x >> 5;
  const bool works = warp < 4;
  const auto at = [&](int i, int j) { return l + 16 * i * l_stride + 16 * j; };
  if (works) invert_16(at(warp, warp));
  __syncthreads();
  if (warp < 2) {  // the 32 x 32 diagonal blocks
    const int i = 2 * warp + 1, j = 2 * warp;
    float x[2][4] = {}, y[2][4] = {};
    multiply_16(x, at(i, j), at(j, j), 1.0f);
    __syncwarp();
    store_16(at(i, j), x);
    __syncwarp();
    multiply_16(y, at(i, i), at(i, j), -1.0f);
    __syncwarp();
    store_16(at(i, j), y);
  }
  __syncthreads();
  const int i = 2 + (warp >> 1), j = warp & 1;  // the 32 x 32 block below the diagonal
  float x[2][4] = {}, y[2][4] = {};
  if (works)
    for (int m = j; m < 2; ++m) multiply_16(x, at(i, m), at(m, j), 1.0f);
  __syncthreads();
  if (works) store_16(at(i, j), x);
  __syncthreads();
  if (works)
    for (int m = 2; m <= i; ++m) multiply_16(y, at(i, m), at(m, j), -1.0f);
  __syncthreads();
  if (works) store_16(at(i, j), y);
}

}  // namespace moeplan::kernels::kda
