#pragma once
/// Attention residuals over wide rows: the streams of a token (backward: dy first) pass through a ring in shared memory (kernels/base/ring.cuh).
/// Per token: a pass over the streams for their sums, one reduction for all of them, a pass that reads them from the ring again.
/// Online rescaling (the other form, cuda.cu) would cost a reduction a stream, whose latency nothing covers where two tokens are resident.

#include "kernels/base/ring.cuh"

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

/// More slots than a token has items (streams, and dy in the backward).
template <bool backward, bool weight>
__global__ void __maxnreg__((weight ? 112 : 72)) mix_through_ring(const __grid_constant__ Arguments a, int slots) {
  extern __shared__ uint4 memory[];
  __shared__ float partial[2][2 * ring::most_slots][ring::most_warps + 1];   // of a token: two sums a stream, by warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, items = a.streams + backward;
  ring::Ring ring(memory, slots, a.width);

  i64 coming = blockIdx.x;   // token and item whose copy is started next
  int coming_item = 0;
  const auto start_copy = [&] {
    if (coming >= a.rows) return ring.start(nullptr);
    ring.start((backward && coming_item == 0 ? a.dy : a.v[coming_item - backward]) + coming * a.width);
    if (++coming_item == items) coming_item = 0, coming += gridDim.x;
  };

  float w[ring::packs][8] = {}, through[ring::packs][8] = {};
#pragma unroll
  for (int k = 0; k < ring::packs; ++k)
    if (ring.inside(k)) {
      const auto norm = load<8, false>(a.norm + ring.column(k)), proj = load<8, false>(a.proj + ring.column(k));
#pragma unroll
      for (int j = 0; j < 8; ++j) w[k][j] = norm[j] * proj[j];
    }
  for (int i = 0; i < slots; ++i) start_copy();

  int turn = 0;
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    Pack<bf16, 8> dy[ring::packs];
    ring.wait(backward ? 0 : items - 1);   // forward's last was started half a token ago; backward, which has more to do, waits stream by stream
    if constexpr (backward) {
#pragma unroll
      for (int k = 0; k < ring::packs; ++k) dy[k] = ring.inside(k) ? ring.held(0, k) : Pack<bf16, 8>::of({});
    }
    const i64 entry = row * a.streams + lane;
    float p = 0, r = 0;
    if (backward && lane < a.streams) p = a.mix[entry], r = a.inverse_rms[entry];
    for (int i = 0; i < a.streams; i += 2) {   // forward: v . v and w . v; backward: dy . v and w . v; of two streams
      float sums[4] = {};
      const bool second = i + 1 < a.streams;
      if constexpr (backward) ring.wait(1 + i + second);
#pragma unroll
      for (int of = 0; of < 2; ++of)
#pragma unroll
        for (int k = 0; k < ring::packs; ++k) {
          if (!ring.inside(k) || (of == 1 && !second)) continue;
          const auto v = ring.held(i + of + backward, k);
#pragma unroll
          for (int j = 0; j < 8; ++j) sums[2 * of] = fmaf(backward ? dy[k][j] : v[j], v[j], sums[2 * of]), sums[2 * of + 1] = fmaf(w[k][j], v[j], sums[2 * of + 1]);
        }
      const float sum = ring::warp_sums(sums);
      if (lane % 8 == 0) partial[turn][2 * i + lane / 8][warp] = sum;
    }
    __syncthreads();   // the other turn's sums may still be read by slower warps, this turn's have all been
    float total = 0;   // lane 2 i: the first sum of stream i, lane 2 i + 1: the second
    if (lane < 2 * a.streams)
      for (int x = 0; x < warps; ++x) total += partial[turn][lane][x];
    const float one = __shfl_sync(0xffffffffu, total, 2 * lane), along = __shfl_sync(0xffffffffu, total, 2 * lane + 1);   // lane i: stream i
    float ds = 0, back = 0;
    if constexpr (backward) {
      const float mean = ring::warp_sum(lane < a.streams ? p * one : 0.0f);
      ds = p * (one - mean) * r, back = along / static_cast<float>(a.width) * r * r;
    } else {
      r = rsqrtf(one / static_cast<float>(a.width) + a.epsilon);
      const float score = lane < a.streams ? r * along : -INFINITY;
      float most = score;
#pragma unroll
      for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
      p = __expf(score - most);
      p *= 1.0f / ring::warp_sum(p);
      if (warp == 0 && lane < a.streams) a.inverse_rms[entry] = r, a.mix[entry] = p;
    }
    if constexpr (backward) start_copy();
    float y[ring::packs][8] = {};
    for (int i = 0; i < a.streams; ++i) {
      const float p_i = __shfl_sync(0xffffffffu, p, i), ds_i = __shfl_sync(0xffffffffu, ds, i), back_i = __shfl_sync(0xffffffffu, back, i);
#pragma unroll
      for (int k = 0; k < ring::packs; ++k) {
        if (!ring.inside(k)) continue;
        const auto v = ring.held(i + backward, k);
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
          store<8>(a.dv[i] + row * a.width + ring.column(k), dv);
        }
      }
      start_copy();   // into the slot that this stream has left
    }
    if constexpr (!backward)
#pragma unroll
      for (int k = 0; k < ring::packs; ++k)
        if (ring.inside(k)) store<8>(a.y + row * a.width + ring.column(k), y[k]);
    ring.advance(items);
  }
  if constexpr (weight) write_partial<8, ring::packs>(through, a.partials + blockIdx.x * a.width, a.width, static_cast<int>(blockDim.x));
}

}  // namespace moeplan::cuda::mixing
