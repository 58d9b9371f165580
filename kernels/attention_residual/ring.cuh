#pragma once
/// Attention residuals over wide rows: the streams of a token pass through a ring in shared memory.
///
/// A block owns a token at a time, a thread two packs of 8 columns of it. The thread copies its own packs of the coming streams (backward: dy
/// first) into its own places of the ring, so that no barrier guards the ring and up to its whole size is in flight, over the end of a token
/// into the next. Per token: a pass over the streams for their sums, one reduction for all of them, a pass that reads them from the ring again.
/// Online rescaling (the other form, cuda.cu) would cost a reduction a stream, whose latency nothing covers where two tokens are resident.

#include "kernels/base/ptx.cuh"
#include "kernels/base/rows.cuh"

namespace moeplan::cuda::mixing {

constexpr int most_streams = op::AttentionResidual::most_blocks + 1;

struct Arguments {
  const bf16* v[most_streams];
  bf16* dv[most_streams];
  const bf16 *norm, *proj, *dy;
  bf16* y;
  float *mix, *inverse_rms, *partials;
  i64 rows, width;
  int streams;
  float epsilon;
};

namespace ptx = kernels::ptx;

inline constexpr int ring_packs = 2, ring_most_slots = 16, ring_most_warps = 16;

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
/// Both sums over the warp: lanes below 16 end with the first, the others with the second.
__device__ __forceinline__ float warp_sums(float first, float second) {
  const bool upper = threadIdx.x % 32 >= 16;
  float v = (upper ? second : first) + __shfl_xor_sync(0xffffffffu, upper ? first : second, 16);
#pragma unroll
  for (int o = 8; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

/// [slots][ring_packs][threads] packs in dynamic shared memory; more slots than a token has items (streams, and dy in the backward).
template <bool backward, bool weight>
__global__ void __maxnreg__((weight ? 112 : 72)) mix_through_ring(const __grid_constant__ Arguments a, int slots) {
  extern __shared__ uint4 ring[];
  __shared__ float partial[2][2 * ring_most_slots][ring_most_warps + 1];   // of a token: two sums a stream, by warp
  const int thread = threadIdx.x, threads = blockDim.x, lane = thread % 32, warp = thread / 32, warps = threads / 32, items = a.streams + backward;
  const auto column = [&](int k) { return static_cast<i64>(thread + k * threads) * 8; };
  const auto inside = [&](int k) { return column(k) < a.width; };

  i64 coming = blockIdx.x;   // token and item whose copy is started next, and its slot
  int coming_item = 0, coming_slot = 0;
  const auto start_copy = [&] {
    if (coming < a.rows) {
      const bf16* from = backward && coming_item == 0 ? a.dy : a.v[coming_item - backward];
#pragma unroll
      for (int k = 0; k < ring_packs; ++k)
        if (inside(k)) ptx::copy_16(ptx::shared_address(ring + (coming_slot * ring_packs + k) * threads + thread), from + coming * a.width + column(k));
      if (++coming_item == items) coming_item = 0, coming += gridDim.x;
      coming_slot = coming_slot + 1 == slots ? 0 : coming_slot + 1;
    }
    ptx::copy_commit();   // also where nothing is left, so that one copy more is always one group more
  };
  const auto held = [&](int slot, int k) {
    const uint4 q = ring[(slot * ring_packs + k) * threads + thread];
    return Pack<bf16, 8>{{q.x, q.y, q.z, q.w}};
  };

  float w[ring_packs][8] = {}, through[ring_packs][8] = {};
#pragma unroll
  for (int k = 0; k < ring_packs; ++k)
    if (inside(k)) {
      const auto norm = load<8, false>(a.norm + column(k)), proj = load<8, false>(a.proj + column(k));
#pragma unroll
      for (int j = 0; j < 8; ++j) w[k][j] = norm[j] * proj[j];
    }
  for (int i = 0; i < slots; ++i) start_copy();

  int first = 0, turn = 0;   // slot of the token's first item
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    const auto slot_of = [&](int item) { return first + item >= slots ? first + item - slots : first + item; };
    Pack<bf16, 8> dy[ring_packs];
    if constexpr (backward) {
      wait_pending(slots - 1);
#pragma unroll
      for (int k = 0; k < ring_packs; ++k) dy[k] = inside(k) ? held(first, k) : Pack<bf16, 8>::of({});
    }
    const i64 entry = row * a.streams + lane;
    float p = 0, r = 0;
    if (backward && lane < a.streams) p = a.mix[entry], r = a.inverse_rms[entry];
    for (int i = 0; i < a.streams; ++i) {   // forward: v . v and w . v; backward: dy . v and w . v
      wait_pending(slots - 1 - backward - i);
      float one = 0, along = 0;
#pragma unroll
      for (int k = 0; k < ring_packs; ++k) {
        if (!inside(k)) continue;
        const auto v = held(slot_of(i + backward), k);
#pragma unroll
        for (int j = 0; j < 8; ++j) one = fmaf(backward ? dy[k][j] : v[j], v[j], one), along = fmaf(w[k][j], v[j], along);
      }
      const float both = warp_sums(one, along);
      if (lane % 16 == 0) partial[turn][2 * i + lane / 16][warp] = both;
    }
    __syncthreads();   // the other turn's sums may still be read by slower warps, this turn's have all been
    float total = 0;   // lane 2 i: the first sum of stream i, lane 2 i + 1: the second
    if (lane < 2 * a.streams)
      for (int x = 0; x < warps; ++x) total += partial[turn][lane][x];
    const float one = __shfl_sync(0xffffffffu, total, 2 * lane), along = __shfl_sync(0xffffffffu, total, 2 * lane + 1);   // lane i: stream i
    float ds = 0, back = 0;
    if constexpr (backward) {
      const float mean = warp_sum(lane < a.streams ? p * one : 0.0f);
      ds = p * (one - mean) * r, back = along / static_cast<float>(a.width) * r * r;
    } else {
      r = rsqrtf(one / static_cast<float>(a.width) + a.epsilon);
      const float score = lane < a.streams ? r * along : -INFINITY;
      float most = score;
#pragma unroll
      for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
      p = __expf(score - most);
      p *= 1.0f / warp_sum(p);
      if (warp == 0 && lane < a.streams) a.inverse_rms[entry] = r, a.mix[entry] = p;
    }
    if constexpr (backward) start_copy();
    float y[ring_packs][8] = {};
    for (int i = 0; i < a.streams; ++i) {
      const float p_i = __shfl_sync(0xffffffffu, p, i), ds_i = __shfl_sync(0xffffffffu, ds, i), back_i = __shfl_sync(0xffffffffu, back, i);
#pragma unroll
      for (int k = 0; k < ring_packs; ++k) {
        if (!inside(k)) continue;
        const auto v = held(slot_of(i + backward), k);
        if constexpr (!backward) {
#pragma unroll
          for (int j = 0; j < 8; ++j) y[k][j] = fmaf(p_i, v[j], y[k][j]);
        } else {
          if constexpr (weight)
#pragma unroll
            for (int j = 0; j < 8; ++j) through[k][j] = fmaf(ds_i, v[j], through[k][j]);
          if (a.dv[i] == nullptr) continue;
          float dv[8];
#pragma unroll
          for (int j = 0; j < 8; ++j) dv[j] = fmaf(p_i, dy[k][j], ds_i * fmaf(-back_i, v[j], w[k][j]));
          store<8>(a.dv[i] + row * a.width + column(k), dv);
        }
      }
      start_copy();   // into the slot that this stream has left
    }
    if constexpr (!backward)
#pragma unroll
      for (int k = 0; k < ring_packs; ++k)
        if (inside(k)) store<8>(a.y + row * a.width + column(k), y[k]);
    first = slot_of(items);
  }
  if constexpr (weight) write_partial<8, ring_packs>(through, a.partials + blockIdx.x * a.width, a.width, threads);
}

/// How the ring form is launched; no blocks where it does not take the call.
struct RingPlan {
  unsigned blocks = 0;
  int threads = 0, slots = 0;
  std::size_t bytes = 0;
};
inline RingPlan ring_plan(i64 rows, i64 width, int items, bool wide, bool two_blocks) {
  const i64 threads = (width / 8 + ring_packs * 32 - 1) / (ring_packs * 32) * 32, slot = threads * ring_packs * 16;
  if (!wide || threads < 64 || threads > 32 * ring_most_warps || items + 2 > ring_most_slots) return {};
  constexpr i64 all = 216 << 10;   // of a multiprocessor's 228 KB, less what sums and the system take
  i64 slots = all / slot, each = 1;
  if (two_blocks && slots / 2 >= items + 2) slots /= 2, each = 2;
  slots = std::min<i64>(slots, ring_most_slots);
  if (slots < items + 2) return {};
  const i64 blocks = std::min<i64>(rows, each * kernels::device_facts().multiprocessors);
  return {static_cast<unsigned>(blocks), static_cast<int>(threads), static_cast<int>(slots), static_cast<std::size_t>(slots * slot)};
}

template <bool backward, bool weight>
void queue_ring(const Arguments& a, const RingPlan& plan, cudaStream_t stream) {
  kernels::check(cudaFuncSetAttribute(mix_through_ring<backward, weight>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(plan.bytes)), "attention_residual: reserve shared memory");
  mix_through_ring<backward, weight><<<plan.blocks, static_cast<unsigned>(plan.threads), plan.bytes, stream>>>(a, plan.slots);
}

}  // namespace moeplan::cuda::mixing
