/// \file
/// Gradients of a chunk of 64 tokens, from the state that enters it and the gradient of the one that leaves it: the
/// chunk forward, keeping the state before every 8th token; then 8 tokens at a time from the end, forward in registers
/// and back. dB and dC are sums over the channels: over the eight of a warp by halving exchanges, over warps and sets
/// of channels in shared memory, over the blocks of a chunk from parts; each in one order.

#include "kernels/attention/launch.cuh"
#include "kernels/base/rows.cuh"
#include "kernels/mamba1/scan.cuh"

namespace moeplan::cuda::mamba1 {
namespace {

constexpr int stretch = 8, stretches = mamba1::tokens / stretch, warps = threads / 32;
constexpr int sets_a_block = static_cast<int>(moeplan::mamba1::part_channels / moeplan::mamba1::block_channels);

struct Shared {
  Tile step, x, dy;
  Vectors b, c;
  float4 before[stretches][threads];       ///< each thread's state before every 8th token
  float sums[warps][stretch][2 * states];  ///< dB and dC over a warp's channels
  float all[mamba1::tokens][2 * states];   ///< over the block's
};

/// Sums eight values over the eight lanes that differ in bits 2 to 4; this lane ends with value 4 [bit 4] + 2 [bit 3] +
/// [bit 2].
__device__ __forceinline__ float scatter_sum(const float (&v)[8]) {
  const bool high = threadIdx.x & 16, middle = threadIdx.x & 8, low = threadIdx.x & 4;
  float four[4], two[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) four[i] = (high ? v[4 + i] : v[i]) + __shfl_xor_sync(~0u, high ? v[i] : v[4 + i], 16);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    two[i] = (middle ? four[2 + i] : four[i]) + __shfl_xor_sync(~0u, middle ? four[i] : four[2 + i], 8);
  return (low ? two[1] : two[0]) + __shfl_xor_sync(~0u, low ? two[0] : two[1], 4);
}

__global__ void __launch_bounds__(threads, 2) chunk_gradients(const Problem p) {
  extern __shared__ __align__(16) char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int chunk = static_cast<int>(blockIdx.x) / p.parts, part = static_cast<int>(blockIdx.x) % p.parts;
  const i64 first = static_cast<i64>(chunk) * mamba1::tokens;
  const std::uint64_t begins = beginnings(p, chunk);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  fill(s.b, p, p.b, first);
  fill(s.c, p, p.c, first);
  for (int i = threadIdx.x; i < mamba1::tokens * 2 * states; i += threads)
    s.all[i / (2 * states)][i % (2 * states)] = 0;
  for (int set = 0; set < sets_a_block; ++set) {
    const i64 from = (static_cast<i64>(part) * sets_a_block + set) * channels;
    if (from >= p.inner) break;
    __syncthreads();  // the tiles of the set before are written
    fill(s.step, p, p.dt, first, from, [](float raw) { return softplus(raw); });
    fill(s.x, p, p.x, first, from, [](float v) { return v; });
    fill(s.dy, p, p.dy, first, from, [](float v) { return v; });
    const Mine mine(p, from);
    const i64 channel = from + mine.channel, at = static_cast<i64>(chunk) * p.inner + channel;
    const bool there = channel < p.inner;
    const float d = there ? p.d[channel] : 0.0f;
    __syncthreads();
    const auto four = [&](const float* of) {
      return there ? *reinterpret_cast<const float4*>(of + at * states + mine.part * each) : make_float4(0, 0, 0, 0);
    };
    const auto advance = [&](float(&h)[each], int t, float(&decay)[each]) {
      const float dt = s.step[t][mine.channel], value = dt * s.x[t][mine.channel];
      float b[each];
      read(s.b, t, mine.part, b);
#pragma unroll
      for (int n = 0; n < each; ++n) {
        decay[n] = begins >> t & 1 ? 0.0f : power_of_two(-mine.rate[n] * dt);
        h[n] = fmaf(decay[n], begins >> t & 1 ? 0.0f : h[n], value * b[n]);
      }
    };
    {
      const float4 entering = four(p.entering);
      float h[each] = {entering.x, entering.y, entering.z, entering.w}, decay[each];
#pragma unroll 1
      for (int k = 0; k < stretches; ++k) {
        s.before[k][threadIdx.x] = make_float4(h[0], h[1], h[2], h[3]);
        if (k + 1 == stretches) break;
#pragma unroll
        for (int i = 0; i < stretch; ++i) advance(h, k * stretch + i, decay);
      }
    }
    const float4 leaving = four(p.leaving);
    float g[each] = {leaving.x, leaving.y, leaving.z, leaving.w}, da_log[each] = {}, dd = 0;
#pragma unroll 1
    for (int k = stretches - 1; k >= 0; --k) {
      float h[stretch + 1][each], decay[stretch][each];
      const float4 before = s.before[k][threadIdx.x];
      h[0][0] = before.x, h[0][1] = before.y, h[0][2] = before.z, h[0][3] = before.w;
#pragma unroll
      for (int i = 0; i < stretch; ++i) {
#pragma unroll
        for (int n = 0; n < each; ++n) h[i + 1][n] = h[i][n];
        advance(h[i + 1], k * stretch + i, decay[i]);
      }
#pragma unroll
      for (int i = stretch - 1; i >= 0; --i) {
        const int t = k * stretch + i;
        const float dt = s.step[t][mine.channel], x = s.x[t][mine.channel], dy = s.dy[t][mine.channel];
        float along = 0, through_decay = 0, v[8], b[each], c[each];
        read(s.b, t, mine.part, b), read(s.c, t, mine.part, c);
#pragma unroll
        for (int n = 0; n < each; ++n) {
          v[4 + n] = h[i + 1][n] * dy;
          g[n] = fmaf(c[n], dy, g[n]);
          along = fmaf(g[n], b[n], along);
          v[n] = dt * x * g[n];
          const bool begin = begins >> t & 1;
          const float rates = begin ? 0.0f : g[n] * h[i][n] * decay[i][n] * mine.rate[n];  // in units of log 2
          through_decay += rates;
          da_log[n] = fmaf(-rates, dt, da_log[n]);
          g[n] = begin ? 0.0f : g[n] * decay[i][n];
        }
        along = channel_sum(along), through_decay = channel_sum(through_decay);
        const float sum = scatter_sum(v);
        s.sums[warp][i][(lane & 16 ? states : 0) + mine.part * each + (lane >> 2 & 3)] = sum;
        __syncwarp();
        if (mine.part == 0) {  // this token's values have been read by the four lanes
          dd = fmaf(dy, x, dd);
          s.x[t][mine.channel] = fmaf(d, dy, dt * along);
          s.dy[t][mine.channel] =
              fmaf(along, x, -through_decay * (1 / log2_e)) * -expm1f(-dt);  // sigmoid of what dt is the softplus of
        }
      }
      __syncthreads();
      for (int i = threadIdx.x; i < stretch * 2 * states; i += threads) {
        const int row = i / (2 * states), n = i % (2 * states);
        float sum = s.all[k * stretch + row][n];
#pragma unroll
        for (int w = 0; w < warps; ++w) sum += s.sums[w][row][n];
        s.all[k * stretch + row][n] = sum;
      }
      __syncthreads();
    }
    if (p.dx != nullptr) drain(s.x, p, p.dx, first, from);
    if (p.d_dt != nullptr) drain(s.dy, p, p.d_dt, first, from);
    if (there && p.da_log != nullptr)
#pragma unroll
      for (int n = 0; n < each; ++n)
        if (mine.part * each + n < p.state)
          p.a_log_sums[at * p.state + mine.part * each + n] = da_log[n] * (1 / log2_e);
    if (there && p.dd != nullptr && mine.part == 0) p.d_sums[at] = dd;
  }
  for (int i = threadIdx.x; i < mamba1::tokens * 2 * states; i += threads) {
    const i64 t = first + i / (2 * states);
    if (t < p.tokens)
      p.sums[(static_cast<i64>(part) * p.tokens + t) * 2 * states + i % (2 * states)] =
          s.all[i / (2 * states)][i % (2 * states)];
  }
}

__global__ void __launch_bounds__(256) sum_parts(const Problem p) {
  const i64 i = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x, t = i / (2 * states);
  const int n = static_cast<int>(i % states);
  if (t >= p.tokens || n >= p.state) return;
  float sum = 0;
  for (int part = 0; part < p.parts; ++part) sum += p.sums[static_cast<i64>(part) * p.tokens * 2 * states + i];
  bf16* const to = i % (2 * states) < states ? p.db : p.dc;
  if (to != nullptr) to[t * p.state + n] = __float2bfloat16(sum);
}

}  // namespace

void gradients(const Problem& p, cudaStream_t stream) {
  attention::launch(chunk_gradients, static_cast<std::int64_t>(p.chunks) * p.parts, threads, sizeof(Shared), stream,
                    "mamba1 gradients", shape(p), p);
  if (p.db != nullptr || p.dc != nullptr) {
    sum_parts<<<static_cast<unsigned>((p.tokens * 2 * states + 255) / 256), 256, 0, stream>>>(p);
    kernels::check_launch("mamba1 sums of parts", shape(p));
  }
  if (p.da_log != nullptr) sum_partials(p.chunks, p.inner * p.state, p.a_log_sums, p.da_log, stream);
  if (p.dd != nullptr) sum_partials(p.chunks, p.inner, p.d_sums, p.dd, stream);
}

}  // namespace moeplan::cuda::mamba1
