/// \file
/// Around the products of the gathered attention's backward: row sums, the sinks' gradient, and the fixed-point
/// accumulators of the keys.
///
/// The factor: with G, Q, X the largest magnitudes in dy, q and the keys (or values), a weight is at most 1, so one
/// head of one query adds at most G + 2 scale d_v G X Q to an element of a key's gradient, and all of them `queries x
/// group` times that. The factor is the largest power of two that keeps this below 2^61; what a 64-bit integer then
/// resolves is 2^-61 of a bound that sums stay far below. A value that is not finite makes the factor NaN, and with it
/// the gradients.

#include <algorithm>

#include "kernels/base/pack.cuh"
#include "kernels/sparse_attention/gathered.cuh"

namespace moeplan::cuda::gathered {
namespace {

constexpr int threads = 256;

unsigned blocks_for(i64 n) { return static_cast<unsigned>(std::clamp<i64>((n + threads - 1) / threads, 1, 2048)); }

/// A warp a row of y and dy.
__global__ void __launch_bounds__(threads) sum_rows(const Problem p, float* delta) {
  const i64 row = static_cast<i64>(blockIdx.x) * (threads / 32) + threadIdx.x / 32,
            rows = static_cast<i64>(p.queries) * p.heads;
  if (row >= rows) return;
  const bf16 *y = p.y + row * p.d_v, *dy = p.dy + row * p.d_v;
  const int lane = threadIdx.x % 32;
  float sum = 0;
  if (p.vectors) {
    for (int c = lane * 8; c < p.d_v; c += 256) {
      const auto a = load<8>(y + c), b = load<8>(dy + c);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum = fmaf(a[j], b[j], sum);
    }
  } else {
    for (int c = lane; c < p.d_v; c += 32) sum = fmaf(widened(y[c]), widened(dy[c]), sum);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) delta[row] = sum;
}

/// A block a head: dsink = -sum over queries of e^(sink - lse) delta.
__global__ void __launch_bounds__(threads) sum_sinks(const Problem p, float* dsinks) {
  __shared__ float part[threads];
  const int head = static_cast<int>(blockIdx.x);
  const float sink = p.sinks[head];
  float sum = 0;
  for (i64 i = threadIdx.x; i < p.queries; i += threads)
    sum = fmaf(exp2f((sink - p.lse[i * p.heads + head]) * attention::log2_e), p.delta[i * p.heads + head], sum);
  part[threadIdx.x] = sum;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  if (threadIdx.x == 0) dsinks[head] = -part[0];
}

/// Raises *most to the largest magnitude in x; magnitudes of floats are in the order of their bits, NaN above all.
__global__ void __launch_bounds__(threads) largest(const bf16* x, i64 n, bool wide, unsigned* most) {
  float mine = 0;
  bool broken = false;
  const i64 step = static_cast<i64>(gridDim.x) * threads, thread = static_cast<i64>(blockIdx.x) * threads + threadIdx.x;
  const auto look = [&](float v) { mine = fmaxf(mine, fabsf(v)), broken |= !(fabsf(v) < INFINITY); };
  const i64 packs = wide ? n / 8 : 0;
  for (i64 i = thread; i < packs; i += step) {
    const auto v = load<8>(x + i * 8);
#pragma unroll
    for (int j = 0; j < 8; ++j) look(v[j]);
  }
  for (i64 i = packs * 8 + thread; i < n; i += step) look(widened(x[i]));
  const unsigned all = __reduce_max_sync(~0u, broken ? 0x7fc00000u : __float_as_uint(mine));
  if (threadIdx.x % 32 == 0) atomicMax(most, all);
}

/// most: of q, keys and values, dy. Writes the factor and its inverse.
__global__ void choose_factor(const unsigned* most, double contributions, float scale, int d_v, float* factor) {
  const double q = __uint_as_float(most[0]), x = __uint_as_float(most[1]), g = __uint_as_float(most[2]);
  const double bound = contributions * g * (1 + 2 * static_cast<double>(scale) * d_v * x * q);
  const bool finite = bound < INFINITY;  // false for NaN
  const int power = !finite || bound == 0 ? 0 : max(-120, min(120, 60 - ilogb(bound)));
  factor[0] = finite ? ldexpf(1, power) : NAN, factor[1] = finite ? ldexpf(1, -power) : NAN;
}

__global__ void __launch_bounds__(threads)
    read_back(const unsigned long long* from, i64 n, const float* factor, bf16* to) {
  const double inverse = factor[1];
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * threads)
    to[i] = __float2bfloat16(static_cast<float>(static_cast<double>(static_cast<long long>(from[i])) * inverse));
}

constexpr std::int64_t head_bytes = 256;  ///< three maxima, the factor and its inverse

}  // namespace

void row_sums(const Problem& p, float* delta, cudaStream_t stream) {
  const i64 rows = static_cast<i64>(p.queries) * p.heads;
  sum_rows<<<static_cast<unsigned>((rows + threads / 32 - 1) / (threads / 32)), threads, 0, stream>>>(p, delta);
  kernels::check_launch("gathered attention row sums", shape(p));
}

void sink_gradient(const Problem& p, float* dsinks, cudaStream_t stream) {
  sum_sinks<<<static_cast<unsigned>(p.heads), threads, 0, stream>>>(p, dsinks);
  kernels::check_launch("gathered attention gradient of the sinks", shape(p));
}

std::int64_t Accumulators::bytes() const { return head_bytes + 8 * (keys + values); }

void open(Problem& p, const Accumulators& sizes, char* memory, cudaStream_t stream) {
  kernels::check(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(sizes.bytes()), stream),
                 "clear the accumulators of the keys' gradients");
  auto* const most = reinterpret_cast<unsigned*>(memory);
  auto* const factor = reinterpret_cast<float*>(memory) + 4;
  const auto raise = [&](const bf16* x, i64 n, unsigned* to) {
    if (x != nullptr && n > 0) largest<<<blocks_for(n / 8), threads, 0, stream>>>(x, n, aligned({x}), to);
  };
  const i64 queries = p.queries, heads = p.heads, kv = p.kv_heads;
  raise(p.q, queries * heads * p.d_qk, most);
  raise(p.plain, p.plain_rows * kv * p.d_qk, most + 1);
  raise(p.chosen, p.chosen_rows * kv * p.d_qk, most + 1);
  raise(p.values, p.chosen_rows * kv * p.d_v, most + 1);
  raise(p.dy, queries * heads * p.d_v, most + 2);
  choose_factor<<<1, 1, 0, stream>>>(most, static_cast<double>(queries) * p.group, p.scale, p.d_v, factor);
  kernels::check_launch("gathered attention factor", shape(p));
  p.factor = factor;
  p.dkeys = reinterpret_cast<unsigned long long*>(memory + head_bytes);
  p.dvalues = sizes.values > 0 ? p.dkeys + sizes.keys : nullptr;
}

void close(const Problem& p, const unsigned long long* from, std::int64_t count, bf16* to, cudaStream_t stream) {
  if (count == 0 || to == nullptr) return;
  read_back<<<blocks_for(count), threads, 0, stream>>>(from, count, p.factor, to);
  kernels::check_launch("gathered attention keys' gradients", shape(p));
}

}  // namespace moeplan::cuda::gathered
