#pragma once
/// Wide rows through a ring in shared memory: a persistent block owns a row at a time, a thread two packs of 8 columns of it, and copies its own packs
/// of the coming rows into its own places of the ring. No barrier guards the ring, and up to its whole size is in flight, over the end of a row into
/// the next: what keeps registers for sums (weights' gradients) leaves too few blocks resident to have that in flight otherwise.

#include "kernels/base/ptx.cuh"
#include "kernels/base/rows.cuh"

namespace moeplan::cuda::ring {

namespace ptx = kernels::ptx;

inline constexpr int packs = 2, most_slots = 16, most_warps = 16;

/// Starts the copy of 8 bytes to `shared`.
__device__ __forceinline__ void copy_8(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared), "l"(__cvta_generic_to_global(global)) : "memory");
}
/// Waits until at most `pending` copies of this thread are in flight.
__device__ __forceinline__ void wait_pending(int pending) {
  switch (pending) {
    case 0: ptx::copy_wait<0>(); break;
    case 1: ptx::copy_wait<1>(); break;
    case 2: ptx::copy_wait<2>(); break;
    case 3: ptx::copy_wait<3>(); break;
    case 4: ptx::copy_wait<4>(); break;
    case 5: ptx::copy_wait<5>(); break;
    case 6: ptx::copy_wait<6>(); break;
    case 7: ptx::copy_wait<7>(); break;
    case 8: ptx::copy_wait<8>(); break;
    case 9: ptx::copy_wait<9>(); break;
    case 10: ptx::copy_wait<10>(); break;
    case 11: ptx::copy_wait<11>(); break;
    case 12: ptx::copy_wait<12>(); break;
    case 13: ptx::copy_wait<13>(); break;
    case 14: ptx::copy_wait<14>(); break;
    default: ptx::copy_wait<15>();
  }
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
/// Four sums over the warp in six exchanges: lanes 8 n to 8 n + 7 end with the n-th.
__device__ __forceinline__ float warp_sums(const float (&v)[4]) {
  const bool upper = threadIdx.x % 32 >= 16, odd = threadIdx.x % 16 >= 8;
  const float a = (upper ? v[2] : v[0]) + __shfl_xor_sync(0xffffffffu, upper ? v[0] : v[2], 16);
  const float b = (upper ? v[3] : v[1]) + __shfl_xor_sync(0xffffffffu, upper ? v[1] : v[3], 16);
  float c = (odd ? b : a) + __shfl_xor_sync(0xffffffffu, odd ? a : b, 8);
#pragma unroll
  for (int o = 4; o > 0; o /= 2) c += __shfl_xor_sync(0xffffffffu, c, o);
  return c;
}
/// The thread's places: [slots][packs][threads] packs in dynamic shared memory. Items (streams of a row) are copied and read in the same order.
class Ring {
 public:
  __device__ Ring(uint4* memory, int slots, i64 width)
      : mine_(memory + threadIdx.x), slots_(slots), stride_(static_cast<int>(blockDim.x)) {
#pragma unroll
    for (int k = 0; k < packs; ++k) inside_[k] = column(k) < width;
  }

  __device__ __forceinline__ int column(int k) const { return (static_cast<int>(threadIdx.x) + k * stride_) * 8; }
  __device__ __forceinline__ bool inside(int k) const { return inside_[k]; }

  /// Starts the copy of this thread's packs of `row` into the next place. Null: nothing is left to copy, but it is counted, so that one
  /// item more is always one group more.
  __device__ __forceinline__ void start(const bf16* row) {
    if (row != nullptr) {
      const std::uint32_t to = ptx::shared_address(mine_ + next_ * (packs * stride_));
#pragma unroll
      for (int k = 0; k < packs; ++k)
        if (inside_[k]) ptx::copy_16(to + k * stride_ * 16, row + column(k));
      next_ = next_ + 1 == slots_ ? 0 : next_ + 1;
    }
    ptx::copy_commit();
  }
  /// Waits until the item `item` after the current one is there, where `slots` were started before the first and one since for each item passed.
  __device__ __forceinline__ void wait(int item) const { wait_pending(slots_ - 1 - item); }
  /// Pack k of the item `item` after the current one.
  __device__ __forceinline__ Pack<bf16, 8> held(int item, int k) const {
    const int slot = first_ + item >= slots_ ? first_ + item - slots_ : first_ + item;
    const uint4 q = mine_[(slot * packs + k) * stride_];
    return {{q.x, q.y, q.z, q.w}};
  }
  __device__ __forceinline__ void advance(int items) { first_ = first_ + items >= slots_ ? first_ + items - slots_ : first_ + items; }

 private:
  uint4* mine_;
  int slots_, stride_;
  bool inside_[packs];
  int next_ = 0, first_ = 0;   ///< place of the next copy, and of the current item
};

/// Sum of N values over the block, for all of its threads, in a fixed order; `partial` alternates between two by `turn`.
template <int N>
__device__ __forceinline__ void block_sum(float (&v)[N], float (&partial)[2][N][most_warps], int& turn) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    v[n] = warp_sum(v[n]);
    if (lane == 0) partial[turn][n][warp] = v[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) v[n] = warp_sum(lane < warps ? partial[turn][n][lane] : 0.0f);
  turn ^= 1;
}

/// How a kernel is launched; no blocks where it does not take the call.
struct Plan {
  unsigned blocks = 0;
  int threads = 0, slots = 0;
  std::size_t bytes = 0;
};
/// `items`: streams of a row that pass through the ring. `two_blocks`: the kernel's registers let two of them onto a multiprocessor.
inline Plan plan(i64 rows, i64 width, int items, bool wide, bool two_blocks, const kernels::DeviceFacts& device) {
  const i64 threads = (width / 8 + packs * 32 - 1) / (packs * 32) * 32, slot = threads * packs * 16;
  if (!wide || threads < 64 || threads > 32 * most_warps || items + 2 > most_slots) return {};
  const i64 all = static_cast<i64>(device.shared_bytes_block) - (11 << 10);   // what sums and the system take; 216 KB are left on an H200
  i64 slots = all / slot, each = 1;
  if (two_blocks && slots / 2 >= items + 2) slots /= 2, each = 2;
  slots = std::min<i64>(slots, most_slots);
  if (slots < items + 2) return {};
  const i64 blocks = std::min<i64>(rows, each * device.multiprocessors);
  return {static_cast<unsigned>(blocks), static_cast<int>(threads), static_cast<int>(slots), static_cast<std::size_t>(slots * slot)};
}

/// Queues kernel(arguments, slots) as planned.
template <class Arguments>
void queue(void (*kernel)(Arguments, int), const Plan& plan, const Arguments& arguments, cudaStream_t stream) {
  kernels::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(plan.bytes)), "reserve shared memory for rows");
  kernel<<<plan.blocks, static_cast<unsigned>(plan.threads), plan.bytes, stream>>>(arguments, plan.slots);
}

}  // namespace moeplan::cuda::ring
