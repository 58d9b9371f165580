/// Short causal depthwise convolution with SiLU on the GPU: reference.cpp has the mathematics; up to 4 taps, fewer as 4 with leading zeros.
/// Mapping: a thread owns V neighbouring channels and walks a chunk of tokens with the last three in registers, so x is read once but for three
/// tokens a chunk; sequences begin with zeros. The backward walks three tokens past its chunk, which give gradients into it. Bytes at
/// n = tokens x channels: forward 4 n, backward 6 n. dw and db: a partial row a chunk of 128 tokens, summed in order (4 x 5 n / 128 bytes each way).

#include <climits>

#include "kernels/base/math.cuh"
#include "kernels/base/rows.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/short_conv/op.hpp"

namespace moeplan::cuda {
namespace {

constexpr int threads = 128, taps = 4, chunk = 64, training_chunk = 128;

struct Arguments {
  const bf16 *x, *dy;
  bf16 *y, *dx;
  const float *w, *b;
  const i64* starts;
  int packed, given;   ///< sequences in `starts`, and taps that w has
  i64 tokens, length, channels;
  int tokens_a_chunk;
  bool silu;
  float* partials;     ///< [chunks, 5, channels]: four taps, bias
};

/// The sequence of token t.
struct Sequence {
  i64 begin, end;
};
__device__ __forceinline__ Sequence sequence_of(const Arguments& a, i64 t) {
  if (a.starts == nullptr) {
    const i64 begin = t / a.length * a.length;
    return {begin, min(begin + a.length, a.tokens)};
  }
  int low = 0, high = a.packed;   // the last boundary that is not behind t
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (a.starts[middle] <= t) low = middle;
    else high = middle;
  }
  // Empty sequences share their boundary with the next; `high` is the first boundary behind t. Nothing reads outside whatever the table says.
  return {max(a.starts[low], i64{0}), max(min(a.starts[high], a.tokens), t + 1)};
}

template <int V>
struct Taps {
  float w[taps][V], b[V];
};
template <int V>
__device__ __forceinline__ Taps<V> taps_of(const Arguments& a, i64 c) {
  Taps<V> out;
  const bool whole = a.given == taps && a.w != nullptr && reinterpret_cast<std::uintptr_t>(a.w) % 16 == 0;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (whole) {
      const float4 w = *reinterpret_cast<const float4*>(a.w + (c + v) * taps);
      out.w[0][v] = w.x, out.w[1][v] = w.y, out.w[2][v] = w.z, out.w[3][v] = w.w;
    } else {
#pragma unroll
      for (int j = 0; j < taps; ++j) {
        const int from = j - (taps - a.given);
        out.w[j][v] = from >= 0 && a.w != nullptr ? a.w[(c + v) * a.given + from] : 0.0f;
      }
    }
    out.b[v] = a.b != nullptr ? a.b[c + v] : 0.0f;
  }
  return out;
}

/// Moves the window on: x(t - 3), x(t - 2), x(t - 1), x(t).
template <int V>
__device__ __forceinline__ void push(float (&window)[taps][V], const float (&value)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) {
#pragma unroll
    for (int j = 0; j + 1 < taps; ++j) window[j][v] = window[j + 1][v];
    window[taps - 1][v] = value[v];
  }
}
template <int V>
__device__ __forceinline__ void clear(float (&window)[taps][V]) {
#pragma unroll
  for (int j = 0; j < taps; ++j)
#pragma unroll
    for (int v = 0; v < V; ++v) window[j][v] = 0;
}
template <int V>
__device__ __forceinline__ void widen(const Pack<bf16, V>& p, float (&out)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) out[v] = p[v];
}
/// The three tokens before t0 as far as they are of its sequence.
template <int V>
__device__ __forceinline__ void fill_window(const Arguments& a, float (&window)[taps][V], i64 t0, i64 begin, i64 c) {
  clear<V>(window);
#pragma unroll
  for (int back = taps - 1; back > 0; --back) {
    float value[V] = {};
    if (t0 - back >= begin) widen<V>(load<V>(a.x + (t0 - back) * a.channels + c), value);
    push<V>(window, value);
  }
}
template <int V>
__device__ __forceinline__ void before_silu(const Taps<V>& k, const float (&window)[taps][V], float (&z)[V]) {
#pragma unroll
  for (int v = 0; v < V; ++v) {
    z[v] = k.b[v];
#pragma unroll
    for (int j = 0; j < taps; ++j) z[v] = fmaf(k.w[j][v], window[j][v], z[v]);
  }
}

/// Blocks that are resident together have neighbouring channels of the same tokens: whole rows, which memory gives faster than pieces of them.
template <int V>
__device__ __forceinline__ i64 chunk_of(const Arguments& a, i64& channel) {
  const unsigned pieces = static_cast<unsigned>((a.channels + threads * V - 1) / (threads * V)), chunk = blockIdx.x / pieces;
  channel = (static_cast<i64>(blockIdx.x - chunk * pieces) * threads + threadIdx.x) * V;
  return chunk;
}

template <int V>
__global__ void __launch_bounds__(threads) conv_forward(Arguments a) {
  i64 c;
  const i64 t0 = chunk_of<V>(a, c) * a.tokens_a_chunk, t1 = min(t0 + a.tokens_a_chunk, a.tokens);
  if (c >= a.channels) return;
  const Taps<V> k = taps_of<V>(a, c);
  Sequence s = sequence_of(a, t0);
  float window[taps][V];
  fill_window<V>(a, window, t0, s.begin, c);
  const auto each = [&](i64 t, const Pack<bf16, V>& x) {
    float value[V], z[V];
    widen<V>(x, value);
    push<V>(window, value);
    before_silu<V>(k, window, z);
    if (a.silu)
#pragma unroll
      for (int v = 0; v < V; ++v) z[v] *= sigmoid(z[v]);
    store<V>(a.y + t * a.channels + c, z);
  };
  constexpr int ahead = 8;
  for (i64 t = t0; t < t1; t += ahead) {
    Pack<bf16, V> x[ahead];
    if (t + ahead <= min(t1, s.end)) {   // no sequence and no chunk ends among them: nothing is asked token by token
#pragma unroll
      for (int u = 0; u < ahead; ++u) x[u] = load<V>(a.x + (t + u) * a.channels + c);
#pragma unroll
      for (int u = 0; u < ahead; ++u) each(t + u, x[u]);
      continue;
    }
#pragma unroll
    for (int u = 0; u < ahead; ++u)
      if (t + u < t1) x[u] = load<V>(a.x + (t + u) * a.channels + c);
#pragma unroll
    for (int u = 0; u < ahead; ++u) {
      if (t + u >= t1) break;
      if (t + u == s.end) {
        s = sequence_of(a, t + u);
        clear<V>(window);
      }
      each(t + u, x[u]);
    }
  }
}

/// Six blocks a multiprocessor (with dw four) have enough in flight.
template <int V, bool weight>
__global__ void __launch_bounds__(threads, weight ? 4 : 6) conv_backward(Arguments a) {
  i64 c;
  const i64 chunk = chunk_of<V>(a, c), t0 = chunk * a.tokens_a_chunk, t1 = min(t0 + a.tokens_a_chunk, a.tokens);
  if (c >= a.channels) return;
  const Taps<V> k = taps_of<V>(a, c);
  Sequence s = sequence_of(a, t0);
  const bool reads_x = a.x != nullptr;   // without SiLU and without dw it is not needed
  float x[taps][V], dz[taps][V], sums[taps + 1][V] = {};
  clear<V>(x), clear<V>(dz);
  if (reads_x) fill_window<V>(a, x, t0, s.begin, c);
  // With dz of t - 3 ... t in the window, the gradient of x at t - 3 is complete.
  const auto write = [&](i64 at) {
    float dx[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      dx[v] = 0;
#pragma unroll
      for (int j = 0; j < taps; ++j) dx[v] = fmaf(k.w[taps - 1 - j][v], dz[j][v], dx[v]);
    }
    store<V>(a.dx + at * a.channels + c, dx);
  };
  const auto emit = [&](i64 at) {
    if (a.dx != nullptr && at >= max(t0, s.begin) && at < t1) write(at);
  };
  // The last three tokens of a sequence (before t) get nothing from behind it.
  const auto flush = [&](i64 t) {
    const float none[V] = {};
#pragma unroll
    for (int i = 0; i + 1 < taps; ++i) {
      push<V>(dz, none);
      emit(t - taps + 1 + i);
    }
  };
  // Takes in the token at hand: its gradient before the SiLU joins the window and, in its own chunk, the sums.
  const auto take = [&](const Pack<bf16, V>& px, const Pack<bf16, V>& pd, bool own) {
    float d[V];
    widen<V>(pd, d);
    if (reads_x) {
      float value[V], z[V];
      widen<V>(px, value);
      push<V>(x, value);
      before_silu<V>(k, x, z);
      if (a.silu)
#pragma unroll
        for (int v = 0; v < V; ++v) d[v] *= silu_dual(z[v]).slope;
    }
    push<V>(dz, d);
    if constexpr (weight) {
      if (own)
#pragma unroll
        for (int v = 0; v < V; ++v) {
          sums[taps][v] += d[v];
#pragma unroll
          for (int j = 0; j < taps; ++j) sums[j][v] = fmaf(d[v], x[j][v], sums[j][v]);
        }
    }
  };
  const i64 last = min(t1 + taps - 1, a.tokens);
  i64 t = t0;
  constexpr int ahead = 4;
  bool done = false;
  for (; t < last && !done; t += ahead) {
    Pack<bf16, V> px[ahead], pd[ahead];
    if (t + ahead <= min(t1, s.end) && t - taps + 1 >= max(t0, s.begin)) {   // nothing begins or ends among what they read and write
#pragma unroll
      for (int u = 0; u < ahead; ++u) {
        if (reads_x) px[u] = load<V>(a.x + (t + u) * a.channels + c);
        pd[u] = load<V>(a.dy + (t + u) * a.channels + c);
      }
#pragma unroll
      for (int u = 0; u < ahead; ++u) {
        take(px[u], pd[u], true);
        if (a.dx != nullptr) write(t + u - taps + 1);
      }
      continue;
    }
#pragma unroll
    for (int u = 0; u < ahead; ++u)
      if (t + u < last) {
        if (reads_x) px[u] = load<V>(a.x + (t + u) * a.channels + c);
        pd[u] = load<V>(a.dy + (t + u) * a.channels + c);
      }
#pragma unroll
    for (int u = 0; u < ahead; ++u) {
      if (done || t + u >= last) continue;
      if (t + u == s.end) {
        flush(t + u);
        if (t + u >= t1) {   // what follows belongs to the next chunk alone
          done = true;
          continue;
        }
        s = sequence_of(a, t + u);
        clear<V>(x), clear<V>(dz);
      }
      take(px[u], pd[u], t + u < t1);
      emit(t + u - taps + 1);
    }
  }
  if (!done && last < t1 + taps - 1) flush(last);   // the tokens ended before the three behind the chunk
  if constexpr (weight) {
#pragma unroll
    for (int j = 0; j <= taps; ++j)
#pragma unroll
      for (int v = 0; v < V; ++v) a.partials[(chunk * (taps + 1) + j) * a.channels + c + v] = sums[j][v];
  }
}

/// dw [channels, given] and db [channels] from the partial rows, in the order of the chunks.
__global__ void __launch_bounds__(256) sum_chunks(i64 chunks, i64 channels, int given, const float* partials, float* dw, float* db) {
  const i64 c = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  const int j = static_cast<int>(blockIdx.y);
  if (c >= channels) return;
  float sum = 0;
#pragma unroll 8
  for (i64 i = 0; i < chunks; ++i) sum += partials[(i * (taps + 1) + j) * channels + c];
  const int to = j - (taps - given);
  if (j == taps) {
    if (db != nullptr) db[c] = sum;
  } else if (dw != nullptr && to >= 0) {
    dw[c * given + to] = sum;
  }
}

Arguments arguments(const op::ShortConv& op, const Frame& f) {
  Arguments a{};
  a.x = f["x"].as<bf16>(), a.dy = f.d("y").as<bf16>(), a.y = f["y"].as<bf16>(), a.dx = f.d("x").as<bf16>();
  a.w = f["w"].as<float>(), a.b = f["b"].as<float>(), a.starts = f["starts"].as<i64>();
  a.packed = static_cast<int>(op.packed_sequences), a.given = static_cast<int>(op.taps);
  a.tokens = op.tokens, a.length = op.sequence_length, a.channels = op.channels;
  a.tokens_a_chunk = chunk, a.silu = op.silu, a.partials = f.scratch<float>();
  return a;
}
std::string shape(const op::ShortConv& op) { return "tokens=" + std::to_string(op.tokens) + " channels=" + std::to_string(op.channels); }
i64 chunks_of(i64 tokens, i64 each) { return (tokens + each - 1) / each; }
template <int V>
unsigned grid_of(const Arguments& a) { return static_cast<unsigned>(chunks_of(a.tokens, a.tokens_a_chunk) * chunks_of(a.channels, threads * V)); }

}  // namespace

void forward(const op::ShortConv& op, const Frame& f) {
  if (op.tokens == 0) return;
  const Arguments a = arguments(op, f);
  if (op.channels % 8 == 0 && aligned({a.x, a.y})) conv_forward<8><<<grid_of<8>(a), threads, 0, f.stream()>>>(a);
  else conv_forward<1><<<grid_of<1>(a), threads, 0, f.stream()>>>(a);
  kernels::check_launch("short_conv forward", shape(op));
}

void backward(const op::ShortConv& op, const Frame& f) {
  Arguments a = arguments(op, f);
  float *dw = f.d("w").as<float>(), *db = f.d("b").as<float>();
  const bool weight = dw || db;
  if (weight) a.tokens_a_chunk = training_chunk;
  if (!op.silu && !weight) a.x = nullptr;   // not needed, and perhaps not there
  if (op.tokens > 0) {
    const bool wide = op.channels % 4 == 0 && aligned({a.x, a.dy, a.dx});
    if (wide && weight) conv_backward<4, true><<<grid_of<4>(a), threads, 0, f.stream()>>>(a);
    else if (wide) conv_backward<4, false><<<grid_of<4>(a), threads, 0, f.stream()>>>(a);
    else if (weight) conv_backward<1, true><<<grid_of<1>(a), threads, 0, f.stream()>>>(a);
    else conv_backward<1, false><<<grid_of<1>(a), threads, 0, f.stream()>>>(a);
    kernels::check_launch("short_conv backward", shape(op));
  }
  if (!weight) return;
  const dim3 blocks(static_cast<unsigned>(chunks_of(op.channels, 256)), taps + 1);
  sum_chunks<<<blocks, 256, 0, f.stream()>>>(chunks_of(op.tokens, training_chunk), op.channels, a.given, a.partials, dw, db);
  kernels::check_launch("short_conv backward: sum of chunks", shape(op));
}

std::string refusal(const op::ShortConv& op) {
  if (op.taps > taps) return "has no CUDA kernel for " + std::to_string(op.taps) + " taps, only for up to " + std::to_string(taps);
  if (chunks_of(op.tokens, chunk) * chunks_of(op.channels, threads) > INT_MAX)
    return std::to_string(op.tokens) + " tokens of " + std::to_string(op.channels) + " channels are more blocks than a grid has: use more micro-batches";
  return {};
}
std::int64_t scratch(const op::ShortConv& op, Pass pass, Wants wants) {
  return pass == Pass::backward && wants.weight_grad && op.training == Training::full ? 4 * (taps + 1) * op.channels * chunks_of(op.tokens, training_chunk) : 0;
}

}  // namespace moeplan::cuda
