/// Rotary embedding on the GPU: each pair (a, b) turns by its angle, (a cos - b sin, a sin + b cos); the gradient turns the other way.
/// The angle is taken in fp64 as turns, of which whole ones are dropped, so that positions of millions keep fp32's precision.
/// Mapping: a block owns one or more tokens and moves two packs of a head (the two members of 8 pairs) a thread, four such in flight; the first are asked
/// for before it makes the tokens' table of cosines and sines in shared memory. Bytes: 4 tokens x heads x head_dim; may run in place.

#include <algorithm>
#include <numbers>
#include <vector>

#include "kernels/base/pack.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/rope/frequencies.hpp"

namespace moeplan::cuda {
namespace {

constexpr int most_pairs = 256, threads = 256, most_table = 2048, ahead = 4;

struct Arguments {
  const bf16* x;
  bf16* y;
  const std::int32_t* positions;
  i64 tokens, sequence_length;
  int heads, head_dim, first, half;   ///< `first` column that turns, `half` pairs
  int still;                          ///< columns of a head that do not turn
  int per_head, per_token;            ///< items
  Divisor by_head, by_token;
  bool interleaved;
  float magnitude, direction;
  double turns[most_pairs];           ///< of each pair a position
};

/// An item is what a thread does at once: two packs of V columns that turn, or one that does not.
template <int V>
struct Item {
  i64 a = -1, b = -1;   ///< elements; b: -1 where nothing turns
  int pair = 0;         ///< entry of the table for the first pair
  Pack<bf16, V> va, vb;
};

template <int V>
__device__ __forceinline__ void find(const Arguments& a, i64 token, int in_block, int index, Item<V>& item) {
  const int turning = a.half / V, head = static_cast<int>(a.by_head.quotient(static_cast<unsigned>(index))), r = index - head * a.per_head;
  const i64 begin = (token * a.heads + head) * a.head_dim;
  if (r >= turning) {   // the columns before the rotated part if it trails, after it if it leads
    item.a = begin + (r - turning) * V + (a.first == 0 ? 2 * a.half : 0), item.b = -1;
    return;
  }
  item.pair = in_block * a.half + r * V;
  item.a = begin + a.first + (a.interleaved ? 2 * r : r) * V;
  item.b = item.a + (a.interleaved ? V : a.half);
}

template <int V>
__global__ void __launch_bounds__(threads) turn(const __grid_constant__ Arguments a, int tokens_a_block) {
  extern __shared__ float2 table[];   // cosine and sine, [tokens_a_block, half]
  const i64 base = static_cast<i64>(blockIdx.x) * tokens_a_block;
  const int count = static_cast<int>(min(static_cast<i64>(tokens_a_block), a.tokens - base)), all = count * a.per_token;
  Item<V> item[ahead];
  const auto read = [&](int first) {
#pragma unroll
    for (int u = 0; u < ahead; ++u) {
      const int at = first + u * threads, t = static_cast<int>(a.by_token.quotient(static_cast<unsigned>(at)));
      item[u].a = -1;
      if (at >= all) continue;
      find<V>(a, base + t, t, at - t * a.per_token, item[u]);
      item[u].va = load<V>(a.x + item[u].a);
      if (item[u].b >= 0) item[u].vb = load<V>(a.x + item[u].b);
    }
  };
  read(static_cast<int>(threadIdx.x));
  for (int i = threadIdx.x; i < count * a.half; i += threads) {
    const int t = i / a.half;
    const i64 position = a.positions != nullptr ? a.positions[base + t] : (base + t) % a.sequence_length;
    double turned = static_cast<double>(position) * a.turns[i - t * a.half];
    turned -= rint(turned);
    float sine, cosine;
    sincospif(2.0f * static_cast<float>(turned), &sine, &cosine);
    table[i] = {a.magnitude * cosine, a.direction * a.magnitude * sine};
  }
  __syncthreads();
  for (int i = threadIdx.x; i < all; i += ahead * threads) {
    if (i >= ahead * threads) read(i);
#pragma unroll
    for (int u = 0; u < ahead; ++u) {
      if (item[u].a < 0) continue;
      if (item[u].b < 0) {
        if (a.x != a.y) store<V>(a.y + item[u].a, item[u].va);
        continue;
      }
      float va[V], vb[V];
      if (a.interleaved) {
        float z[2 * V];
#pragma unroll
        for (int j = 0; j < V; ++j) z[j] = item[u].va[j], z[V + j] = item[u].vb[j];
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const float2 cs = table[item[u].pair + j];
          const float p = z[2 * j], q = z[2 * j + 1];
          z[2 * j] = p * cs.x - q * cs.y, z[2 * j + 1] = fmaf(p, cs.y, q * cs.x);
        }
#pragma unroll
        for (int j = 0; j < V; ++j) va[j] = z[j], vb[j] = z[V + j];
      } else {
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const float2 cs = table[item[u].pair + j];
          const float p = item[u].va[j], q = item[u].vb[j];
          va[j] = p * cs.x - q * cs.y, vb[j] = fmaf(p, cs.y, q * cs.x);
        }
      }
      store<V>(a.y + item[u].a, va), store<V>(a.y + item[u].b, vb);
    }
  }
}

void run(const op::Rope& op, const Frame& f, const bf16* x, bf16* y, float direction, std::string_view name) {
  if (op.tokens == 0 || y == nullptr) return;
  Arguments a{};
  a.x = x, a.y = y, a.positions = f["positions"].as<std::int32_t>();
  a.tokens = op.tokens, a.sequence_length = op.sequence_length;
  a.heads = static_cast<int>(op.heads), a.head_dim = static_cast<int>(op.head_dim), a.half = static_cast<int>(op.rotary_dim / 2);
  a.still = static_cast<int>(op.head_dim - op.rotary_dim), a.first = op.trailing ? a.still : 0;
  a.interleaved = op.interleaved, a.magnitude = static_cast<float>(op.magnitude), a.direction = direction;
  const std::vector<double> radians = op::frequencies(op);
  std::transform(radians.begin(), radians.end(), a.turns, [](double r) { return r / (2 * std::numbers::pi); });
  const bool wide = a.half % 8 == 0 && a.still % 8 == 0 && aligned({x, y});
  const i64 pack = wide ? 8 : 1;
  a.per_head = static_cast<int>(a.half / pack + a.still / pack), a.per_token = a.heads * a.per_head;
  a.by_head = Divisor::of(static_cast<std::uint32_t>(a.per_head)), a.by_token = Divisor::of(static_cast<std::uint32_t>(a.per_token));
  const i64 tokens_a_block = std::clamp<i64>(ahead * threads / a.per_token, 1, most_table / a.half);
  const auto blocks = static_cast<unsigned>((op.tokens + tokens_a_block - 1) / tokens_a_block);
  const std::size_t table = sizeof(float2) * static_cast<std::size_t>(tokens_a_block * a.half);
  if (wide) turn<8><<<blocks, threads, table, f.stream()>>>(a, static_cast<int>(tokens_a_block));
  else turn<1><<<blocks, threads, table, f.stream()>>>(a, static_cast<int>(tokens_a_block));
  kernels::check_launch(name, "tokens=" + std::to_string(op.tokens) + " heads=" + std::to_string(op.heads) + " head_dim=" + std::to_string(op.head_dim));
}

}  // namespace

void forward(const op::Rope& op, const Frame& f) { run(op, f, f["x"].as<bf16>(), f["y"].as<bf16>(), op.inverse ? -1.0f : 1.0f, "rope forward"); }
void backward(const op::Rope& op, const Frame& f) { run(op, f, f.d("y").as<bf16>(), f.d("x").as<bf16>(), op.inverse ? 1.0f : -1.0f, "rope backward"); }

std::string refusal(const op::Rope& op) {
  if (op.rotary_dim % 2 != 0 || op.rotary_dim > op.head_dim) return std::to_string(op.rotary_dim) + " columns do not turn in pairs within " + std::to_string(op.head_dim);
  if (op.rotary_dim > 2 * most_pairs) return std::to_string(op.rotary_dim) + " columns turn; the kernel's table has " + std::to_string(2 * most_pairs);
  if (op.heads * op.head_dim > (1 << 24)) return "a token of " + std::to_string(op.heads * op.head_dim) + " columns is more than 2^24";
  return {};
}
std::int64_t scratch(const op::Rope&, Pass, Wants) { return 0; }

}  // namespace moeplan::cuda
