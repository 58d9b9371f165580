#include "kernels/base/ragged.cuh"

#include <algorithm>

namespace moeplan::cuda {
namespace {

/// One block; sums in chunks of its threads.
__global__ void __launch_bounds__(1024) offsets_kernel(const std::int32_t* rows_of_expert, int experts, int bound, int* offsets, int* counters, int count) {
  __shared__ i64 sums[1024];
  i64 before = 0;
  for (int first = 0; first < experts; first += 1024) {
    const int e = first + static_cast<int>(threadIdx.x);
    i64 own = 0;
    if (e < experts) own = rows_of_expert == nullptr ? bound / experts + (e < bound % experts) : max(rows_of_expert[e], 0);
    sums[threadIdx.x] = own;
    __syncthreads();
    for (unsigned step = 1; step < 1024; step *= 2) {
      const i64 other = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
      __syncthreads();
      sums[threadIdx.x] += other;
      __syncthreads();
    }
    if (e < experts) offsets[e + 1] = static_cast<int>(min(before + sums[threadIdx.x], static_cast<i64>(bound)));
    before += sums[1023];
    __syncthreads();
  }
  if (threadIdx.x == 0) offsets[0] = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += 1024) counters[i] = 0;
}
/// A grid over the whole pieces of 16 bytes.
__global__ void __launch_bounds__(256) clear_rows_kernel(const int* first, i64 rows, i64 packs, uint4* data) {
  const i64 begin = *first * packs, end = rows * packs;
  for (i64 i = begin + static_cast<i64>(blockIdx.x) * 256 + threadIdx.x; i < end; i += static_cast<i64>(gridDim.x) * 256) data[i] = make_uint4(0, 0, 0, 0);
}
}  // namespace

void offsets_of(const std::int32_t* rows_of_expert, int experts, int bound, int* offsets, cudaStream_t stream, std::span<int> counters) {
  offsets_kernel<<<1, 1024, 0, stream>>>(rows_of_expert, experts, bound, offsets, counters.data(), static_cast<int>(counters.size()));
  kernels::check_launch("row offsets", "experts=" + std::to_string(experts) + " rows=" + std::to_string(bound));
}

void clear_rows_from(const int* first, i64 rows, i64 width, bf16* data, cudaStream_t stream) {
  if (rows == 0 || data == nullptr) return;
  const i64 packs = rows * width / 8, blocks = (packs + 4 * 256 - 1) / (4 * 256);
  clear_rows_kernel<<<static_cast<unsigned>(std::min<i64>(blocks, 528)), 256, 0, stream>>>(first, rows, width / 8, reinterpret_cast<uint4*>(data));
  kernels::check_launch("clear rows", "rows=" + std::to_string(rows) + " width=" + std::to_string(width));
}

}  // namespace moeplan::cuda
