/// \file
/// The wrappers of one warp: addresses and election, matrix fragments, packed conversions, barriers, and copies beside the threads, each
/// against what PTX says of the one instruction that it is.

#include <gtest/gtest.h>

#include "kernels/base/ptx.cuh"
#include "tests/kernels/moe_cuda_support.hpp"

namespace moeplan {
namespace {

using kernels::DeviceBuffer;
namespace ptx = kernels::ptx;
using tests::bf16;
using tests::poisoned;

template <class T>
std::vector<T> results(DeviceBuffer& out) {
  kernels::check(cudaGetLastError(), "launch");
  return out.download<T>();
}

__global__ void elect(int* out) {
  __shared__ int cell;
  const unsigned chosen = __ballot_sync(0xffffffffu, ptx::elect_one());
  if (threadIdx.x != 0) return;
  cell = 17;
  int read;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(read) : "r"(ptx::shared_address(&cell)) : "memory");
  out[0] = __popc(chosen), out[1] = static_cast<int>(ptx::cluster_rank()), out[2] = read, out[3] = static_cast<int>(ptx::pack_bf16(1.0f, -2.0f));
  out[4] = static_cast<int>(ptx::pack_bf16(1.00390625f, 1.01171875f));   // halfway: to the even neighbour, down and up
}

TEST(PtxWarp, ElectsOneLaneAndPacksTheLowValueLow) {
  MOEPLAN_NEEDS_GPU();
  DeviceBuffer out = poisoned(5 * sizeof(int));
  elect<<<1, 32>>>(out.get<int>());
  EXPECT_EQ(results<int>(out), (std::vector<int>{1, 0, 17, static_cast<int>(0xc0003f80), static_cast<int>(0x3f823f80)}));
}

/// Matrices of 8 x 8 sixteen-bit values: value 64 m + 8 r + c at row r, column c of matrix m. `out`: the registers of every lane.
template <int form>
__global__ void fragments(std::uint32_t* out, std::uint16_t* stored) {
  __shared__ __align__(128) std::uint16_t from[256];
  __shared__ __align__(128) std::uint16_t to[256];
  for (int i = threadIdx.x; i < 256; i += 32) from[i] = static_cast<std::uint16_t>(i), to[i] = 0xffff;
  __syncwarp();
  const std::uint32_t row = ptx::shared_address(from + 8 * threadIdx.x), back = ptx::shared_address(to + 8 * threadIdx.x);
  std::uint32_t four[4] = {};
  std::uint32_t two[2] = {};
  if constexpr (form == 0) ptx::load_matrix_x4(four, row), ptx::store_matrix_x4(back, four);
  if constexpr (form == 1) ptx::load_matrix_x4_transposed(four, row), ptx::store_matrix_x4_transposed(back, four);
  if constexpr (form == 2) ptx::load_matrix_x2(two, row);
  if constexpr (form == 3) ptx::load_matrix_x2_transposed(two, row), ptx::store_matrix_x2_transposed(back, two);
  __syncwarp();
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = form < 2 ? four[i] : i < 2 ? two[i] : 0;
  for (int i = threadIdx.x; i < 256; i += 32) stored[i] = to[i];
}

template <int form>
void expect_fragments() {
  constexpr int matrices = form < 2 ? 4 : 2;
  constexpr bool transposed = form % 2 == 1;
  DeviceBuffer out = poisoned(128 * 4), stored = poisoned(256 * 2);
  fragments<form><<<1, 32>>>(out.get<std::uint32_t>(), stored.get<std::uint16_t>());
  const auto got = results<std::uint32_t>(out);
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned m = 0; m < matrices; ++m) {
      const auto value = [&](unsigned r, unsigned c) { return 64 * m + (transposed ? 8 * c + r : 8 * r + c); };
      ASSERT_EQ(got[4 * lane + m], value(lane / 4, 2 * (lane % 4)) | value(lane / 4, 2 * (lane % 4) + 1) << 16) << "form " << form << ", lane " << lane << ", matrix " << m;
    }
  if (form == 2) return;   // is not stored
  const auto written = stored.download<std::uint16_t>();   // what was loaded goes back to where it came from
  for (unsigned i = 0; i < 64 * matrices; ++i) ASSERT_EQ(written[i], i) << "form " << form;
}

TEST(PtxWarp, LoadsAndStoresMatrixFragmentsAsTheirLayoutSays) {
  MOEPLAN_NEEDS_GPU();
  expect_fragments<0>(), expect_fragments<1>(), expect_fragments<2>(), expect_fragments<3>();
}

/// C = C0 + A B of whole numbers by one mma: A is 16 x depth, B depth x 8 in rows of 8, C 16 x 8.
template <bool tf32>
__global__ void multiply(const float* a, const float* b, float* c) {
  constexpr int depth = tf32 ? 8 : 16;
  const int lane = threadIdx.x, row = lane / 4, column = 2 * (lane % 4);
  float sum[4] = {1, 2, 3, 4};
  std::uint32_t left[4], right[2];
  for (int i = 0; i < 4; ++i) {
    const float* const at = a + (row + i % 2 * 8) * depth;
    left[i] = tf32 ? __float_as_uint(at[lane % 4 + i / 2 * 4]) : ptx::pack_bf16(at[column + i / 2 * 8], at[column + i / 2 * 8 + 1]);
  }
  for (int i = 0; i < 2; ++i) right[i] = tf32 ? __float_as_uint(b[(lane % 4 + 4 * i) * 8 + row]) : ptx::pack_bf16(b[(column + 8 * i) * 8 + row], b[(column + 8 * i + 1) * 8 + row]);
  if constexpr (tf32) ptx::mma_tf32(sum, left, right);
  else ptx::mma_bf16(sum, left, right);
  for (int i = 0; i < 4; ++i) c[(row + i / 2 * 8) * 8 + column + i % 2] = sum[i];
}

template <bool tf32>
void expect_product() {
  constexpr int depth = tf32 ? 8 : 16;
  std::vector<float> a(16 * depth), b(8 * depth);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(static_cast<int>(i * 5 % 13) - 6);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(static_cast<int>(i * 3 % 7) - 3);
  const DeviceBuffer left = DeviceBuffer::of(a), right = DeviceBuffer::of(b);
  DeviceBuffer out = poisoned(128 * 4);
  multiply<tf32><<<1, 32>>>(left.get<float>(), right.get<float>(), out.get<float>());
  const auto got = results<float>(out);
  for (std::size_t r = 0; r < 16; ++r)
    for (std::size_t c = 0; c < 8; ++c) {
      float want = static_cast<float>(1 + c % 2 + 2 * (r / 8));
      for (std::size_t k = 0; k < depth; ++k) want += a[r * depth + k] * b[k * 8 + c];
      ASSERT_EQ(got[8 * r + c], want) << r << ", " << c;
    }
}

TEST(PtxWarp, MultipliesFragmentsExactly) {
  MOEPLAN_NEEDS_GPU();
  expect_product<false>(), expect_product<true>();
}

/// Two groups of 16-byte copies, the second of which is masked for odd lanes; a barrier that counts them beside.
__global__ void copies(const int4* from, int4* out, int* waited) {
  __shared__ __align__(16) int4 cells[96];
  __shared__ ptx::Barrier barrier;
  const int lane = threadIdx.x;
  if (lane == 0) ptx::barrier_init(&barrier, 32), ptx::fence_barrier_init();
  for (int i = 0; i < 3; ++i) cells[32 * i + lane] = make_int4(-1, -1, -1, -1);
  __syncwarp();
  ptx::copy_16(ptx::shared_address(cells + lane), from + lane), ptx::copy_commit();
  ptx::copy_16(ptx::shared_address(cells + 32 + lane), from + 32 + lane, lane % 2 == 0), ptx::copy_commit();
  ptx::copy_wait<1>();
  out[lane] = cells[lane];
  ptx::copy_wait<0>();
  out[32 + lane] = cells[32 + lane];
  ptx::copy_16(ptx::shared_address(cells + 64 + lane), from + lane);
  ptx::barrier_arrive_after_async_copies(&barrier);
  ptx::barrier_wait(&barrier, 0);
  out[64 + lane] = cells[64 + 31 - lane];   // another lane's copy
  if (lane == 0) *waited = ptx::barrier_test(&barrier, 0) && !ptx::barrier_test(&barrier, 1);
}

TEST(PtxWarp, CopiesSixteenBytesOrZeros) {
  MOEPLAN_NEEDS_GPU();
  std::vector<int> values(256);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i) + 1;
  const DeviceBuffer from = DeviceBuffer::of(values);
  DeviceBuffer out = poisoned(96 * 16), waited = poisoned(4);
  copies<<<1, 32>>>(from.get<int4>(), out.get<int4>(), waited.get<int>());
  const auto got = results<int>(out);
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (std::size_t e = 0; e < 4; ++e) {
      EXPECT_EQ(got[4 * lane + e], values[4 * lane + e]);
      EXPECT_EQ(got[128 + 4 * lane + e], lane % 2 == 0 ? values[128 + 4 * lane + e] : 0);
      EXPECT_EQ(got[256 + 4 * lane + e], values[4 * (31 - lane) + e]);
    }
  EXPECT_EQ(waited.download<int>()[0], 1);
}

__global__ void phases(int* out) {
  __shared__ ptx::Barrier barrier;
  const int lane = threadIdx.x;
  if (lane == 0) ptx::barrier_init(&barrier, 32), ptx::fence_barrier_init();
  __syncwarp();
  if (lane == 0) out[0] = ptx::barrier_test(&barrier, 0), out[1] = ptx::barrier_test(&barrier, 1);   // phase 0 runs; the one before counts as over
  __syncwarp();
  ptx::barrier_arrive_if(lane < 31, &barrier);
  __syncwarp();
  if (lane == 0) out[2] = ptx::barrier_test(&barrier, 0);   // 31 of 32
  __syncwarp();
  if (lane == 31) ptx::barrier_arrive(&barrier);
  ptx::barrier_wait(&barrier, 0);
  ptx::RingPosition<2> at;
  at.advance();
  if (lane == 0) out[3] = ptx::barrier_test(&barrier, 0), out[4] = static_cast<int>(10 * at.stage + at.parity);
  at.advance();
  if (lane == 0) out[5] = static_cast<int>(10 * at.stage + at.parity);
}

TEST(PtxWarp, BarriersCountArrivalsPhaseByPhase) {
  MOEPLAN_NEEDS_GPU();
  DeviceBuffer out = poisoned(6 * sizeof(int));
  phases<<<1, 32>>>(out.get<int>());
  EXPECT_EQ(results<int>(out), (std::vector<int>{0, 1, 0, 1, 10, 1}));
}

/// 512 bytes in, doubled, out; and added to what lies there.
__global__ void bulk(const float* from, float* to, float* sum) {
  __shared__ __align__(128) float cells[128];
  __shared__ ptx::Barrier barrier;
  const int lane = threadIdx.x;
  if (lane == 0) ptx::barrier_init(&barrier, 1), ptx::fence_barrier_init();
  __syncwarp();
  if (lane == 0) ptx::barrier_arrive_expect(&barrier, 512), ptx::bulk_load(cells, from, 512, &barrier);
  ptx::barrier_wait(&barrier, 0);
  for (int i = lane; i < 128; i += 32) cells[i] *= 2;
  ptx::fence_async_shared();
  __syncwarp();
  if (lane != 0) return;
  ptx::bulk_store(to, cells, 512), ptx::bulk_commit(), ptx::bulk_wait_read<0>();
  ptx::bulk_add_f32(sum, cells, 512), ptx::bulk_commit(), ptx::bulk_wait<0>();
}

TEST(PtxWarp, BulkCopiesMoveAndAdd) {
  MOEPLAN_NEEDS_GPU();
  std::vector<float> values(128), before(128);
  for (std::size_t i = 0; i < 128; ++i) values[i] = static_cast<float>(i) - 5, before[i] = static_cast<float>(1000 * i);
  const DeviceBuffer from = DeviceBuffer::of(values);
  DeviceBuffer to = poisoned(512), sum = DeviceBuffer::of(before);
  bulk<<<1, 32>>>(from.get<float>(), to.get<float>(), sum.get<float>());
  const auto copied = results<float>(to), added = sum.download<float>();
  for (std::size_t i = 0; i < 128; ++i) {
    EXPECT_EQ(copied[i], 2 * values[i]);
    EXPECT_EQ(added[i], before[i] + 2 * values[i]);
  }
}

}  // namespace
}  // namespace moeplan
