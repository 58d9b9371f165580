/// \file
/// The wrappers of blocks and clusters: tiles of tensor maps, multicast, barriers of other blocks, named barriers, registers that change
/// hands, dependent launches.

#include <gtest/gtest.h>

#include <numeric>

#include "kernels/base/ptx.cuh"
#include "kernels/base/swizzle.cuh"
#include "kernels/base/tma.hpp"
#include "tests/kernels/moe_cuda_support.hpp"

namespace moeplan {
namespace {

using kernels::DeviceBuffer;
using kernels::TensorSwizzle;
using kernels::TensorTile;
using kernels::TensorType;
namespace ptx = kernels::ptx;
using tests::poisoned;

template <class T>
std::vector<T> results(DeviceBuffer& out) {
  kernels::check(cudaGetLastError(), "launch");
  return out.download<T>();
}

std::vector<float> counted(std::size_t count) {
  std::vector<float> out(count);
  std::iota(out.begin(), out.end(), 1.0f);
  return out;
}

/// A tile of `floats` values of a tensor of `rank` dimensions, as it lies in shared memory; then the tile, negated, back to another tensor.
template <int rank>
__global__ void tile(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, int floats, int4 at, float* out) {
  extern __shared__ __align__(1024) float cells[];
  __shared__ ptx::Barrier barrier;
  if (threadIdx.x == 0) ptx::tensor_prefetch_map(&from), ptx::barrier_init(&barrier, 1), ptx::fence_barrier_init();
  __syncwarp();
  if (threadIdx.x == 0) {
    ptx::barrier_arrive_expect(&barrier, 4 * floats);
    if constexpr (rank == 2) ptx::tensor_load_2d(cells, &from, at.x, at.y, &barrier);
    if constexpr (rank == 3) ptx::tensor_load_3d(cells, &from, at.x, at.y, at.z, &barrier);
    if constexpr (rank == 4) ptx::tensor_load_4d(cells, &from, at.x, at.y, at.z, at.w, &barrier);
  }
  ptx::barrier_wait(&barrier, 0);
  for (int i = threadIdx.x; i < floats; i += 32) out[i] = cells[i], cells[i] = -cells[i];
  ptx::fence_async_shared();
  __syncwarp();
  if (threadIdx.x != 0) return;
  if constexpr (rank == 2) ptx::tensor_store_2d(&to, cells, at.x, at.y);
  if constexpr (rank == 3) ptx::tensor_store_3d(&to, cells, at.x, at.y, at.z);
  ptx::bulk_commit(), ptx::bulk_wait<0>();
}

/// Sizes and box, fastest dimension first, of a dense tensor of floats.
template <int rank>
TensorTile<rank> dense(void* base, std::array<std::uint64_t, rank> sizes, std::array<std::uint32_t, rank> box, TensorSwizzle swizzle = TensorSwizzle::none) {
  TensorTile<rank> out{.type = TensorType::f32, .base = base, .sizes = sizes, .box = box, .swizzle = swizzle};
  std::uint64_t stride = 4;
  for (int i = 0; i + 1 < rank; ++i) out.strides[static_cast<std::size_t>(i)] = stride *= sizes[static_cast<std::size_t>(i)];
  return out;
}

/// Loads the box at `at`, which may reach over the tensor's edges, and stores it negated; sizes and box padded to four dimensions by ones.
template <int rank>
void expect_tile(std::array<std::uint64_t, rank> sizes, std::array<std::uint32_t, rank> box, std::array<int, 4> at) {
  std::array<std::uint64_t, 4> size{1, 1, 1, 1};
  std::array<std::uint32_t, 4> side{1, 1, 1, 1};
  std::copy(sizes.begin(), sizes.end(), size.begin()), std::copy(box.begin(), box.end(), side.begin());
  const auto values = counted(size[0] * size[1] * size[2] * size[3]);
  DeviceBuffer from = DeviceBuffer::of(values), to = DeviceBuffer::of(std::vector<float>(values.size(), 0.5f));
  const std::size_t floats = side[0] * side[1] * side[2] * side[3];
  DeviceBuffer out = poisoned(4 * floats);
  tile<rank><<<1, 32, 4 * floats>>>(kernels::make_tensor_map(dense<rank>(from.get(), sizes, box), "from"), kernels::make_tensor_map(dense<rank>(to.get(), sizes, box), "to"),
                                     static_cast<int>(floats), make_int4(at[0], at[1], at[2], at[3]), out.get<float>());
  const auto got = results<float>(out), stored = to.download<float>();
  std::vector<float> want_stored(values.size(), 0.5f);
  for (std::size_t i = 0; i < floats; ++i) {
    std::size_t rest = i, index = 0, stride = 1;
    bool inside = true;
    for (std::size_t d = 0; d < 4; ++d) {
      const std::int64_t x = at[d] + static_cast<std::int64_t>(rest % side[d]);
      rest /= side[d];
      inside = inside && x >= 0 && x < static_cast<std::int64_t>(size[d]);
      index += static_cast<std::size_t>(x) * stride, stride *= size[d];
    }
    ASSERT_EQ(got[i], inside ? values[index] : 0) << "rank " << rank << ", element " << i;
    if (inside && rank < 4) want_stored[index] = -values[index];
  }
  EXPECT_EQ(stored, want_stored) << "rank " << rank;
}

TEST(PtxBlock, TilesOfATensorArriveAndLeave) {
  MOEPLAN_NEEDS_GPU();
  expect_tile<2>({20, 9}, {8, 4}, {4, 2});
  expect_tile<3>({12, 5, 3}, {8, 2, 2}, {4, 1, 1});
  expect_tile<4>({8, 3, 4, 2}, {4, 2, 2, 2}, {4, 1, 2, 0});
}

TEST(PtxBlock, TilesArriveWithZerosBeyondTheTensorAndLeaveWithinIt) {
  MOEPLAN_NEEDS_GPU();
  expect_tile<2>({20, 9}, {8, 4}, {16, 6});
  expect_tile<3>({12, 5, 3}, {8, 2, 2}, {8, 4, 2});
  expect_tile<4>({8, 3, 4, 2}, {4, 2, 2, 2}, {4, 2, 3, 0});
}

TEST(PtxBlock, SwizzledTilesLieWhereTheirFormulaSays) {
  MOEPLAN_NEEDS_GPU();
  const auto values = counted(32 * 16);
  DeviceBuffer from = DeviceBuffer::of(values), to = poisoned(4 * 32 * 16);
  for (const auto& [swizzle, width] : {std::pair{TensorSwizzle::bytes_128, 32u}, {TensorSwizzle::bytes_64, 16u}, {TensorSwizzle::bytes_32, 8u}}) {
    DeviceBuffer out = poisoned(4 * width * 16);
    const auto map = kernels::make_tensor_map(dense<2>(from.get(), {32, 16}, {width, 16}, swizzle), "from");
    tile<2><<<1, 32, 4 * width * 16>>>(map, kernels::make_tensor_map(dense<2>(to.get(), {32, 16}, {width, 16}, swizzle), "to"), static_cast<int>(width * 16), make_int4(0, 0, 0, 0), out.get<float>());
    const auto got = results<float>(out);
    for (std::uint32_t row = 0; row < 16; ++row)
      for (std::uint32_t column = 0; column < width; ++column) {
        const std::uint32_t chunk = column / 4;
        const std::uint32_t byte = width == 32 ? kernels::swizzle_128(row, chunk) : width == 16 ? kernels::swizzle_64(row, chunk) : kernels::swizzle_32(row, chunk);
        ASSERT_EQ(got[byte / 4 + column % 4], values[row * 32 + column]) << "rows of " << 4 * width << " bytes, " << row << ", " << column;
      }
  }
}

/// Two blocks of a cluster. Block 0 sends a tile to both; block 1 tells block 0 when it has read it, and writes to its cell.
template <int rank>
__global__ void __cluster_dims__(2, 1, 1) share(const __grid_constant__ CUtensorMap from, float* out, int* told) {
  __shared__ __align__(128) float cells[32];
  __shared__ ptx::Barrier full, read;
  __shared__ int cell;
  const std::uint32_t block = ptx::cluster_rank();
  if (threadIdx.x == 0) cell = -1, ptx::barrier_init(&full, 1), ptx::barrier_init(&read, 1), ptx::fence_barrier_init();
  ptx::cluster_sync();
  if (threadIdx.x == 0) {
    ptx::barrier_arrive_expect(&full, 128);
    if (block == 0) {
      if constexpr (rank == 2) ptx::tensor_load_2d_multicast(cells, &from, 0, 1, 3, &full);
      else ptx::tensor_load_4d_multicast(cells, &from, 0, 1, 0, 0, 3, &full);
    }
  }
  ptx::barrier_wait(&full, 0);
  out[32 * block + threadIdx.x] = cells[threadIdx.x];
  __syncwarp();
  if (block == 1 && threadIdx.x == 0) {
    asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(ptx::map_to_rank(ptx::shared_address(&cell), 0)), "r"(42) : "memory");
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
    ptx::barrier_arrive_at_rank(&read, 0);
  }
  if (block == 0) {
    ptx::barrier_wait_cluster(&read, 0);
    if (threadIdx.x == 0) *told = cell;
  }
  ptx::cluster_sync();
}

template <int rank>
void expect_shared(std::array<std::uint64_t, rank> sizes, std::array<std::uint32_t, rank> box) {
  const auto values = counted(8 * 16);
  DeviceBuffer from = DeviceBuffer::of(values), out = poisoned(4 * 64), told = poisoned(4);
  share<rank><<<2, 32>>>(kernels::make_tensor_map(dense<rank>(from.get(), sizes, box), "from"), out.get<float>(), told.get<int>());
  const auto got = results<float>(out);
  for (std::size_t i = 0; i < 64; ++i) ASSERT_EQ(got[i], values[8 + i % 32]) << "rank " << rank << ", block " << i / 32;
  EXPECT_EQ(told.download<int>()[0], 42);
}

TEST(PtxBlock, OneTileReachesEveryBlockOfAClusterAndTheirBarriersReachEachOther) {
  MOEPLAN_NEEDS_GPU();
  expect_shared<2>({8, 16}, {8, 4});
  expect_shared<4>({8, 16, 1, 1}, {8, 4, 1, 1});
}

/// Warps 1 to 3 leave their numbers and go on; warp 0 waits for them.
__global__ void gather(int* out) {
  __shared__ int cells[4];
  const int warp = threadIdx.x / 32;
  if (warp > 0) {
    for (int spin = 0; spin < 1000 * warp; ++spin) __nanosleep(20);
    cells[warp] = 10 * warp;
    __syncwarp();
    ptx::named_arrive(3, 128);
  } else {
    ptx::named_barrier(3, 128);
    if (threadIdx.x < 4) out[threadIdx.x] = threadIdx.x == 0 ? 0 : cells[threadIdx.x];
  }
}

TEST(PtxBlock, NamedBarriersLetSomeArriveAndOthersWait) {
  MOEPLAN_NEEDS_GPU();
  DeviceBuffer out = poisoned(4 * sizeof(int));
  gather<<<1, 128>>>(out.get<int>());
  EXPECT_EQ(results<int>(out), (std::vector<int>{0, 10, 20, 30}));
}

/// One warpgroup gives registers back, the other takes them: 24 + 232 for two groups that began with 128 each.
__global__ void __launch_bounds__(256, 2) trade(float* out) {
  if (threadIdx.x < 128) {
    ptx::registers_release<24>();
    out[threadIdx.x] = -1;
    return;
  }
  ptx::registers_acquire<232>();
  float many[160];
  for (int i = 0; i < 160; ++i) many[i] = static_cast<float>(threadIdx.x + i);
#pragma unroll 1
  for (int round = 0; round < 3; ++round)
#pragma unroll
    for (int i = 0; i < 160; ++i) many[i] += many[(i + 1) % 160];
  float sum = 0;
  for (int i = 0; i < 160; ++i) sum += many[i];
  out[threadIdx.x] = sum;
}

TEST(PtxBlock, RegistersChangeHandsBetweenWarpgroups) {
  MOEPLAN_NEEDS_GPU();
  DeviceBuffer out = poisoned(256 * sizeof(float));
  trade<<<1, 256>>>(out.get<float>());
  const auto got = results<float>(out);
  for (std::size_t t = 0; t < 256; ++t) {
    if (t < 128) {
      ASSERT_EQ(got[t], -1);
      continue;
    }
    std::vector<float> many(160);
    for (std::size_t i = 0; i < 160; ++i) many[i] = static_cast<float>(t + i);
    for (int round = 0; round < 3; ++round)
      for (std::size_t i = 0; i < 160; ++i) many[i] += many[(i + 1) % 160];
    ASSERT_EQ(got[t], std::accumulate(many.begin(), many.end(), 0.0f));
  }
}

__global__ void first(int* cell) {
  ptx::launch_dependents();
  for (int spin = 0; spin < 5000; ++spin) __nanosleep(100);   // half a millisecond: the second is there long before
  *cell = 7;
}
__global__ void second(const int* cell, int* out) {
  ptx::wait_for_previous_kernel();
  *out = *reinterpret_cast<const volatile int*>(cell) + 1;
}

TEST(PtxBlock, ADependentKernelWaitsForWhatItReads) {
  MOEPLAN_NEEDS_GPU();
  DeviceBuffer cell = poisoned(4), out = poisoned(4);
  first<<<1, 1>>>(cell.get<int>());
  cudaLaunchAttribute early{.id = cudaLaunchAttributeProgrammaticStreamSerialization};
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config{.gridDim = 1, .blockDim = 1, .attrs = &early, .numAttrs = 1};
  kernels::check(cudaLaunchKernelEx(&config, second, static_cast<const int*>(cell.get<int>()), out.get<int>()), "launch the dependent kernel");
  EXPECT_EQ(results<int>(out)[0], 8);
}

}  // namespace
}  // namespace moeplan
