#pragma once
/// What the kernels of Mamba-1 share. A block has 64 channels and 64 tokens of them in shared memory; four lanes share
/// a channel, each has four entries of its state in registers (a state of fewer than 16 is padded with entries whose B
/// and C are zero).

#include <string>

#include "kernels/base/math.cuh"
#include "kernels/base/softplus.cuh"
#include "kernels/mamba1/scratch.hpp"

namespace moeplan::cuda::mamba1 {

constexpr int tokens = static_cast<int>(moeplan::mamba1::chunk_tokens),
              channels = static_cast<int>(moeplan::mamba1::block_channels);
constexpr int states = static_cast<int>(moeplan::mamba1::most_state), lanes = 4, each = states / lanes,
              threads = channels * lanes;
constexpr float log2_e = 1.4426950408889634f;

/// One call by value. Pointers of what a pass does not use are null.
struct Problem {
  const bf16 *x, *dt, *b, *c, *dy;
  const float *a_log, *d;
  const i64* starts;  ///< [packed + 1]; null: equal lengths
  bf16 *y, *dx, *d_dt, *db, *dc;
  float *da_log, *dd;
  i64 tokens, length, inner;
  int packed, state, chunks, parts;
  bool vectors;  ///< every row of 8 channels starts on 16 bytes
  float *entering, *leaving, *steps, *sums, *a_log_sums, *d_sums;
};

using Tile = float[mamba1::tokens][channels];
using Vectors = float[mamba1::tokens][states];
static_assert(mamba1::tokens == 64 && channels % 8 == 0);

/// Reads rows [first, first + 64) of channels [from, from + 64) through f; what is outside is 0.
template <class F>
__device__ __forceinline__ void fill(Tile& tile, const Problem& p, const bf16* in, i64 first, i64 from, F&& f) {
  if (p.vectors) {
    for (int i = threadIdx.x; i < mamba1::tokens * channels / 8; i += threads) {
      const int row = i / (channels / 8), column = i % (channels / 8) * 8;
      const bool there = first + row < p.tokens && from + column < p.inner;
      Pack<bf16, 8> v{};
      if (there) v = cuda::load<8>(in + (first + row) * p.inner + from + column);
#pragma unroll
      for (int j = 0; j < 8; ++j) tile[row][column + j] = there ? f(v[j]) : 0.0f;
    }
    return;
  }
  for (int i = threadIdx.x; i < mamba1::tokens * channels; i += threads) {
    const int row = i / channels, column = i % channels;
    const bool there = first + row < p.tokens && from + column < p.inner;
    tile[row][column] = there ? f(widened(in[(first + row) * p.inner + from + column])) : 0.0f;
  }
}
__device__ __forceinline__ void fill(Vectors& tile, const Problem& p, const bf16* in, i64 first) {
  for (int i = threadIdx.x; i < mamba1::tokens * states; i += threads) {
    const int row = i / states, n = i % states;
    tile[row][n] = first + row < p.tokens && n < p.state ? widened(in[(first + row) * p.state + n]) : 0.0f;
  }
}
/// Writes a tile back as bf16.
__device__ __forceinline__ void drain(const Tile& tile, const Problem& p, bf16* out, i64 first, i64 from) {
  if (p.vectors) {
    for (int i = threadIdx.x; i < mamba1::tokens * channels / 8; i += threads) {
      const int row = i / (channels / 8), column = i % (channels / 8) * 8;
      if (first + row >= p.tokens || from + column >= p.inner) continue;
      float v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = tile[row][column + j];
      cuda::store<8>(out + (first + row) * p.inner + from + column, v);
    }
    return;
  }
  for (int i = threadIdx.x; i < mamba1::tokens * channels; i += threads) {
    const int row = i / channels, column = i % channels;
    if (first + row < p.tokens && from + column < p.inner)
      out[(first + row) * p.inner + from + column] = __float2bfloat16(tile[row][column]);
  }
}

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// A thread's channel and its entries' rates e^A_log in units of log 2.
struct Mine {
  int channel, part;
  float rate[each];
  __device__ __forceinline__ Mine(const Problem& p, i64 from)
      : channel(threadIdx.x / lanes), part(threadIdx.x % lanes) {
    const i64 c = from + channel;
#pragma unroll
    for (int s = 0; s < each; ++s) {
      const int n = part * each + s;
      rate[s] = c < p.inner && n < p.state ? expf(p.a_log[c * p.state + n]) * log2_e : 0.0f;
    }
  }
};

/// Bit i: the chunk's token i begins a sequence.
__device__ __forceinline__ std::uint64_t beginnings(const Problem& p, int chunk) {
  const i64 first = static_cast<i64>(chunk) * mamba1::tokens, past = first % p.length;
  std::uint64_t bits = 0;
  if (p.starts != nullptr) {
    int next = 0;  // the first boundary that is not before the chunk
    for (int end = p.packed; next < end;) {
      const int middle = (next + end) / 2;
      if (p.starts[middle] < first)
        next = middle + 1;
      else
        end = middle;
    }
    for (; next < p.packed && p.starts[next] < first + mamba1::tokens; ++next)
      bits |= std::uint64_t{1} << (p.starts[next] - first);
    return bits;
  }
  for (i64 i = past == 0 ? 0 : p.length - past; i < mamba1::tokens; i += p.length) bits |= std::uint64_t{1} << i;
  return bits;
}
/// The entries of the thread's part in a token's vector.
__device__ __forceinline__ void read(const Vectors& from, int t, int part, float (&to)[each]) {
  static_assert(each == 4);
  const float4 v = *reinterpret_cast<const float4*>(&from[t][part * each]);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/// Sum over the four lanes of a channel.
__device__ __forceinline__ float channel_sum(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}

[[nodiscard]] inline std::string shape(const Problem& p) {
  return "tokens=" + std::to_string(p.tokens) + " inner=" + std::to_string(p.inner) +
         " state=" + std::to_string(p.state);
}

/// Each queues its kernels.
void enter_states(const Problem& p, cudaStream_t stream);     ///< `entering` and `steps`
void leave_gradients(const Problem& p, cudaStream_t stream);  ///< `leaving`, after enter_states
void gradients(const Problem& p, cudaStream_t stream);        ///< everything that is asked for, after both

}  // namespace moeplan::cuda::mamba1
