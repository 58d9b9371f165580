/// \file
/// The states that enter each chunk of 64 tokens, and the gradients of those that leave it: what a chunk adds, chunk by
/// chunk at once, then a scan over the chunks. The decay of a chunk is that of the sum of its dt (`steps`, -1 where a
/// sequence begins in it and nothing passes).

#include "kernels/mamba1/scan.cuh"

namespace moeplan::cuda::mamba1 {
namespace {

/// Forward: the state at the chunk's end from zero before it. Reverse: the gradient of the state before it from zero
/// behind it.
template <bool reverse>
__global__ void __launch_bounds__(threads) chunk_states(const Problem p) {
  __shared__ Tile step, in;
  __shared__ __align__(16) Vectors vectors;
  const int sets = static_cast<int>((p.inner + channels - 1) / channels), chunk = static_cast<int>(blockIdx.x) / sets;
  const i64 first = static_cast<i64>(chunk) * mamba1::tokens,
            from = static_cast<i64>(static_cast<int>(blockIdx.x) % sets) * channels;
  fill(step, p, p.dt, first, from, [](float raw) { return softplus(raw); });
  fill(in, p, reverse ? p.dy : p.x, first, from, [](float v) { return v; });
  fill(vectors, p, reverse ? p.c : p.b, first);
  const Mine mine(p, from);
  __syncthreads();
  const std::uint64_t begins = beginnings(p, chunk);
  float state[each] = {}, sum = 0;
  for (int i = 0; i < mamba1::tokens; ++i) {
    const int t = reverse ? mamba1::tokens - 1 - i : i;
    const float dt = step[t][mine.channel], value = in[t][mine.channel];
    float vector[each];
    read(vectors, t, mine.part, vector);
    sum += dt;
#pragma unroll
    for (int s = 0; s < each; ++s) {
      const float decay = power_of_two(-mine.rate[s] * dt);
      const bool begin = begins >> t & 1;
      if (reverse)
        state[s] = begin ? 0.0f : decay * fmaf(vector[s], value, state[s]);
      else
        state[s] = fmaf(decay, begin ? 0.0f : state[s], dt * value * vector[s]);
    }
  }
  const i64 c = from + mine.channel;
  if (c >= p.inner) return;
  const i64 at = static_cast<i64>(chunk) * p.inner + c;
  if (!reverse && mine.part == 0) p.steps[at] = begins != 0 ? -1.0f : sum;
  *reinterpret_cast<float4*>((reverse ? p.leaving : p.entering) + at * states + mine.part * each) =
      make_float4(state[0], state[1], state[2], state[3]);
}

/// A thread a channel and entry: what each chunk adds becomes what enters it (or leaves it, from the last chunk on).
template <bool reverse>
__global__ void __launch_bounds__(256) scan_chunks(const Problem p) {
  const i64 i = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x, c = i / states, pitch = p.inner * states;
  const int n = static_cast<int>(i % states);
  if (c >= p.inner) return;
  const float rate = n < p.state ? expf(p.a_log[c * p.state + n]) * log2_e : 0.0f;
  float* all = (reverse ? p.leaving : p.entering) + i;
  float state = 0;
#pragma unroll 8
  for (int at = 0; at < p.chunks; ++at) {
    const int chunk = reverse ? p.chunks - 1 - at : at;
    const float adds = all[chunk * pitch], steps = p.steps[static_cast<i64>(chunk) * p.inner + c];
    all[chunk * pitch] = state;
    state = steps < 0 ? adds : fmaf(power_of_two(-rate * steps), state, adds);
  }
}

template <bool reverse>
void run(const Problem& p, cudaStream_t stream) {
  const i64 sets = (p.inner + channels - 1) / channels;
  chunk_states<reverse><<<static_cast<unsigned>(sets * p.chunks), threads, 0, stream>>>(p);
  scan_chunks<reverse><<<static_cast<unsigned>((p.inner * states + 255) / 256), 256, 0, stream>>>(p);
  kernels::check_launch("mamba1 states", shape(p));
}

}  // namespace

void enter_states(const Problem& p, cudaStream_t stream) { run<false>(p, stream); }
void leave_gradients(const Problem& p, cudaStream_t stream) { run<true>(p, stream); }

}  // namespace moeplan::cuda::mamba1
