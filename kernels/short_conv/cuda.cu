/// Short causal depthwise convolution with SiLU on the GPU: reference.cpp has the mathematics; up to 4 taps, fewer as 4 with leading zeros.
/// Mapping: a thread owns V neighbouring channels and walks a chunk of tokens with the last three in registers, so x is read once but for three
/// tokens a chunk; sequences begin with zeros. The backward walks three tokens past its chunk, which give gradients into it. Bytes at
/// n = tokens x channels: forward 4 n, backward 6 n. dw and db: a partial row a chunk of 257 tokens, summed in order (4 x 5 n / 257 bytes each way).

#include <climits>

#include "kernels/base/math.cuh"
#include "kernels/base/ring.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/short_conv/scratch.hpp"

namespace moeplan::cuda {
namespace {

constexpr int threads = 128, taps = short_conv::most_taps;
constexpr int group = 4;   ///< tokens that a thread takes at a time
/// Of a kernel: resident blocks a multiprocessor, groups that a thread has on their way, and most tokens a block takes (with dw: what each takes).
struct Shape {
  int blocks, stages, most;
};
constexpr Shape forward_shape{7, 5, 97}, backward_shape{4, 6, 129}, training_shape{4, 4, short_conv::training_chunk};
constexpr int least_chunk = 33;

struct Arguments {
  const bf16 *x, *dy;
  bf16 *y, *dx;
  const float *w, *b;
  const i64* starts;
  int packed, given;   ///< sequences in `starts`, and taps that w has
  i64 tokens, length, channels;
  i64 tokens_a_chunk;
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

/// A thread's packs of 4 channels of coming tokens, of `arrays` arrays: copied to its own places of shared memory, so that no barrier guards them and no
/// register holds what is on its way.
template <int arrays, int stages>
class Coming {
 public:
  static constexpr int bytes = stages * arrays * group * threads * 8;
  __device__ explicit Coming(uint2* memory) : mine_(memory + threadIdx.x) {}
  /// Starts the copy of one array's packs from `from` on, a token `stride` values behind the other. `commit` ends what a stage has.
  __device__ __forceinline__ void start(int array, const bf16* from, i64 stride) const {
    const std::uint32_t to = kernels::ptx::shared_address(mine_ + (next_ * arrays + array) * (group * threads));
#pragma unroll
    for (int u = 0; u < group; ++u) ring::copy_8(to + u * (threads * 8), from + u * stride);
  }
  __device__ __forceinline__ void commit() {
    kernels::ptx::copy_commit();
    next_ = next_ + 1 == stages ? 0 : next_ + 1;
  }
  /// The oldest stage's pack of its token u.
  __device__ __forceinline__ Pack<bf16, 4> held(int array, int u) const {
    const uint2 q = mine_[((first_ * arrays + array) * group + u) * threads];
    return {{q.x, q.y}};
  }
  __device__ __forceinline__ void wait() const { kernels::ptx::copy_wait<stages - 1>(); }
  __device__ __forceinline__ void advance() { first_ = first_ + 1 == stages ? 0 : first_ + 1; }

 private:
  uint2* mine_;
  int next_ = 0, first_ = 0;
};

/// Takes whole groups from token t on while they end before `whole`: start(u) starts the copies of the group at token u, take(t) is for the oldest.
template <int arrays, int stages, class Start, class Take>
__device__ __forceinline__ void groups_from(Coming<arrays, stages>& coming, i64& t, i64 whole, Start&& start, Take&& take) {
  if (t + group > whole) return;
  i64 ahead = t;
#pragma unroll
  for (int i = 0; i + 1 < stages; ++i, ahead += group) {
    if (ahead + group <= whole) start(ahead);
    coming.commit();
  }
  for (; t + group <= whole; t += group, ahead += group) {
    if (ahead + group <= whole) start(ahead);
    coming.commit();
    coming.wait();
    take(t);
    coming.advance();
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
__global__ void __launch_bounds__(threads, forward_shape.blocks) conv_forward(Arguments a) {
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
  for (i64 t = t0; t < t1;) {
    if constexpr (V == 4) {   // no sequence and no chunk ends among a group's tokens: nothing is asked token by token
      using Ahead = Coming<1, forward_shape.stages>;
      __shared__ uint2 memory[Ahead::bytes / 8];
      Ahead coming(memory);
      groups_from(coming, t, min(t1, s.end), [&](i64 from) { coming.start(0, a.x + from * a.channels + c, a.channels); },
                  [&](i64 at) {
#pragma unroll
                    for (int u = 0; u < group; ++u) each(at + u, coming.held(0, u));
                  });
      if (t >= t1) break;
    }
    if (t == s.end) {
      s = sequence_of(a, t);
      clear<V>(window);
    }
    each(t, load<V>(a.x + t * a.channels + c));
    ++t;
  }
}

template <int V, bool weight, bool silu>
__global__ void __launch_bounds__(threads, (weight ? training_shape : backward_shape).blocks) conv_backward(Arguments a) {
  constexpr bool reads_x = weight || silu;
  i64 c;
  const i64 chunk = chunk_of<V>(a, c), t0 = chunk * a.tokens_a_chunk, t1 = min(t0 + a.tokens_a_chunk, a.tokens);
  if (c >= a.channels) return;
  const Taps<V> k = taps_of<V>(a, c);
  Sequence s = sequence_of(a, t0);
  float x[taps][V], dz[taps][V], sums[taps + 1][V] = {};
  clear<V>(x), clear<V>(dz);
  if constexpr (reads_x) fill_window<V>(a, x, t0, s.begin, c);
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
    if constexpr (reads_x) {
      float value[V], z[V];
      widen<V>(px, value);
      push<V>(x, value);
      before_silu<V>(k, x, z);
      if constexpr (silu)
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
  bool done = false;
  while (t < last) {
    if constexpr (V == 4) {   // neither the sequence nor the chunk ends among a group's tokens
      constexpr int arrays = 1 + reads_x;
      using Ahead = Coming<arrays, (weight ? training_shape : backward_shape).stages>;
      __shared__ uint2 memory[Ahead::bytes / 8];
      Ahead coming(memory);
      const i64 first = a.dx != nullptr ? max(t0, s.begin) + taps - 1 : a.tokens;   // token from which on gradients are complete
      groups_from(coming, t, min(last, s.end),
                  [&](i64 from) {
                    coming.start(0, a.dy + from * a.channels + c, a.channels);
                    if constexpr (reads_x) coming.start(1, a.x + from * a.channels + c, a.channels);
                  },
                  [&](i64 at) {
#pragma unroll
                    for (int u = 0; u < group; ++u) {
                      take(reads_x ? coming.held(arrays - 1, u) : Pack<bf16, 4>{}, coming.held(0, u), at + u < t1);
                      if (at + u >= first) write(at + u - taps + 1);
                    }
                  });
      if (t >= last) break;
    }
    if (t == s.end) {
      flush(t);
      if (t >= t1) {   // what follows belongs to the next chunk alone
        done = true;
        break;
      }
      s = sequence_of(a, t);
      clear<V>(x), clear<V>(dz);
    }
    take(reads_x ? load<V>(a.x + t * a.channels + c) : Pack<bf16, V>{}, load<V>(a.dy + t * a.channels + c), t < t1);
    emit(t - taps + 1);
    ++t;
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
  a.silu = op.silu, a.partials = f.scratch<float>();
  return a;
}
std::string shape(const op::ShortConv& op) { return "tokens=" + std::to_string(op.tokens) + " channels=" + std::to_string(op.channels); }
i64 chunks_of(i64 tokens, i64 each) { return (tokens + each - 1) / each; }
/// Tokens a block takes: so many that the blocks are a whole number of times what is resident together, and whole groups with the three tokens behind
/// them that the backward takes too.
i64 tokens_a_chunk(const Arguments& a, bool wide, const Shape& shape, const Frame& f) {
  const i64 pieces = chunks_of(a.channels, threads * (wide ? 4 : 1)), resident = static_cast<i64>(shape.blocks) * f.device().multiprocessors;
  for (i64 waves = 1;; ++waves) {
    const i64 tokens = chunks_of(a.tokens, std::max(waves * resident / pieces, i64{1})), whole = chunks_of(tokens + taps - 1, group) * group - (taps - 1);
    if (whole <= shape.most) return std::max(whole, i64{least_chunk});
  }
}
template <int V>
unsigned grid_of(const Arguments& a) { return static_cast<unsigned>(chunks_of(a.tokens, a.tokens_a_chunk) * chunks_of(a.channels, threads * V)); }
template <bool silu>
void launch_backward(Arguments a, bool wide, bool weight, const Frame& f) {
  a.tokens_a_chunk = weight ? training_shape.most : tokens_a_chunk(a, wide, backward_shape, f);
  if (wide && weight) conv_backward<4, true, silu><<<grid_of<4>(a), threads, 0, f.stream()>>>(a);
  else if (wide) conv_backward<4, false, silu><<<grid_of<4>(a), threads, 0, f.stream()>>>(a);
  else if (weight) conv_backward<1, true, silu><<<grid_of<1>(a), threads, 0, f.stream()>>>(a);
  else conv_backward<1, false, silu><<<grid_of<1>(a), threads, 0, f.stream()>>>(a);
}

}  // namespace

void forward(const op::ShortConv& op, const Frame& f) {
  if (op.tokens == 0) return;
  Arguments a = arguments(op, f);
  const bool wide = op.channels % 4 == 0 && aligned({a.x, a.y});
  a.tokens_a_chunk = tokens_a_chunk(a, wide, forward_shape, f);
  if (wide) conv_forward<4><<<grid_of<4>(a), threads, 0, f.stream()>>>(a);
  else conv_forward<1><<<grid_of<1>(a), threads, 0, f.stream()>>>(a);
  kernels::check_launch("short_conv forward", shape(op));
}

void backward(const op::ShortConv& op, const Frame& f) {
  Arguments a = arguments(op, f);
  float *dw = f.d("w").as<float>(), *db = f.d("b").as<float>();
  const bool weight = dw || db;
  if (!op.silu && !weight) a.x = nullptr;   // not needed, and perhaps not there
  if (op.tokens > 0) {
    const bool wide = op.channels % 4 == 0 && aligned({a.x, a.dy, a.dx});
    if (op.silu) launch_backward<true>(a, wide, weight, f);
    else launch_backward<false>(a, wide, weight, f);
    kernels::check_launch("short_conv backward", shape(op));
  }
  if (!weight) return;
  const dim3 blocks(static_cast<unsigned>(chunks_of(op.channels, 256)), taps + 1);
  sum_chunks<<<blocks, 256, 0, f.stream()>>>(chunks_of(op.tokens, training_shape.most), op.channels, a.given, a.partials, dw, db);
  kernels::check_launch("short_conv backward: sum of chunks", shape(op));
}

std::string refusal(const op::ShortConv& op) {
  if (op.taps > taps) return "has no CUDA kernel for " + std::to_string(op.taps) + " taps, only for up to " + std::to_string(taps);
  if (chunks_of(op.tokens, least_chunk) * chunks_of(op.channels, threads) > INT_MAX)
    return std::to_string(op.tokens) + " tokens of " + std::to_string(op.channels) + " channels are more blocks than a grid has: use more micro-batches";
  return {};
}
std::int64_t scratch(const op::ShortConv& op, Pass pass, Wants wants) { return short_conv::scratch(op, pass, wants); }

}  // namespace moeplan::cuda
