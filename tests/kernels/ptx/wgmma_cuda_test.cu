/// \file
/// The warpgroup product against sums of small whole numbers, which bf16 and fp32 hold exactly: every width, both majors of each operand,
/// A from shared memory and from registers.

#include <gtest/gtest.h>

#include "kernels/base/ptx.cuh"
#include "kernels/base/swizzle.cuh"
#include "tests/kernels/moe_cuda_support.hpp"

namespace moeplan {
namespace {

using kernels::DeviceBuffer;
using kernels::ptx::Major;
namespace ptx = kernels::ptx;
using tests::bf16;

constexpr int kRows = 64, kDepth = 64, kBlock = 64 * 128;   // a block: 64 rows of 128 bytes

/// Byte of element (mn, k) in a tile with the 128-byte swizzle.
__device__ std::uint32_t place(Major major, int mn, int k) {
  if (major == Major::k) return kernels::swizzle_128(mn, k / 8) + 2 * (k % 8);
  return mn / 64 * kBlock + kernels::swizzle_128(k, mn % 64 / 8) + 2 * (mn % 8);
}

template <int n, Major a_major, Major b_major, bool from_registers>
__global__ void __launch_bounds__(128) product(const bf16* a, const bf16* b, float* d) {
  extern __shared__ __align__(1024) unsigned char tiles[];
  unsigned char* const b_tile = tiles + kBlock;
  for (int i = threadIdx.x; i < kRows * kDepth; i += 128) *reinterpret_cast<bf16*>(tiles + place(a_major, i / kDepth, i % kDepth)) = a[i];
  for (int i = threadIdx.x; i < n * kDepth; i += 128) *reinterpret_cast<bf16*>(b_tile + place(b_major, i / kDepth, i % kDepth)) = b[i];
  ptx::fence_async_shared();
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = 16 * warp + lane / 4;
  const auto descriptor = [](const void* tile, Major major) {
    return major == Major::k ? ptx::wgmma_descriptor(ptx::shared_address(tile)) : ptx::wgmma_descriptor(ptx::shared_address(tile), 1024, kBlock);
  };
  const std::uint64_t a_at = descriptor(tiles, a_major), b_at = descriptor(b_tile, b_major);
  float sum[n / 2];
  for (float& v : sum) v = 1e30f;   // the first step overwrites it
  std::uint32_t fragments[kDepth / 16][4];
  if constexpr (from_registers)
    for (int s = 0; s < kDepth / 16; ++s) {
      for (int part = 0; part < 4; ++part)
        fragments[s][part] = *reinterpret_cast<const std::uint32_t*>(a + (row + part % 2 * 8) * kDepth + 16 * s + 2 * (lane % 4) + part / 2 * 8);
      ptx::wgmma_touch(fragments[s]);
    }
  ptx::wgmma_begin();
#pragma unroll
  for (int s = 0; s < kDepth / 16; ++s) {
    const std::uint64_t b_step = ptx::wgmma_advance(b_at, s * (b_major == Major::k ? 32 : 2048));
    if constexpr (from_registers) ptx::Wgmma<n>::template rs<b_major>(sum, fragments[s], b_step, s > 0);
    else ptx::Wgmma<n>::template ss<a_major, b_major>(sum, ptx::wgmma_advance(a_at, s * (a_major == Major::k ? 32 : 2048)), b_step, s > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::wgmma_touch(sum);
  for (int i = 0; i < n / 2; ++i) d[(row + i % 4 / 2 * 8) * n + 8 * (i / 4) + 2 * (lane % 4) + i % 2] = sum[i];
}

std::vector<double> whole_numbers(int count, int seed) {
  std::vector<double> out(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) out[static_cast<std::size_t>(i)] = (i * 7 + i / 11 + seed) % 9 - 4;
  return out;
}

template <int n, Major a_major, Major b_major, bool from_registers>
void expect_exact() {
  const auto a = whole_numbers(kRows * kDepth, 1), b = whole_numbers(n * kDepth, 5);
  const DeviceBuffer left = tests::upload_bf16(a), right = tests::upload_bf16(b);
  DeviceBuffer result = tests::poisoned(sizeof(float) * kRows * n);
  product<n, a_major, b_major, from_registers><<<1, 128, kBlock + (n + 63) / 64 * kBlock>>>(left.get<bf16>(), right.get<bf16>(), result.get<float>());
  kernels::check(cudaGetLastError(), "wgmma");
  const auto got = result.download<float>();
  for (int row = 0; row < kRows; ++row)
    for (int column = 0; column < n; ++column) {
      double want = 0;
      for (int k = 0; k < kDepth; ++k) want += a[static_cast<std::size_t>(row * kDepth + k)] * b[static_cast<std::size_t>(column * kDepth + k)];
      ASSERT_EQ(got[static_cast<std::size_t>(row * n + column)], want) << "width " << n << ", row " << row << ", column " << column;
    }
}

template <int... n>
void expect_widths() {
  (expect_exact<n, Major::k, Major::k, false>(), ...);
  (expect_exact<n, Major::k, Major::k, true>(), ...);
}

TEST(PtxWgmma, MultipliesExactlyAtEveryWidth) {
  MOEPLAN_NEEDS_GPU();
  expect_widths<8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256>();
}

TEST(PtxWgmma, ReadsOperandsWhoseOtherIndexIsContiguous) {
  MOEPLAN_NEEDS_GPU();
  expect_exact<64, Major::mn, Major::k, false>();
  expect_exact<64, Major::k, Major::mn, false>();
  expect_exact<128, Major::mn, Major::mn, false>();
  expect_exact<256, Major::k, Major::mn, true>();
}

}  // namespace
}  // namespace moeplan
