/// Table look-up on the GPU: y_t = scale w[id_t];  dw[id] = scale sum of dy_t over the tokens of that id, in the order of tokens. An id
/// outside of the table looks up zeros and has no gradient.
/// Mapping: forward a thread has two packs of 16 bytes in flight. Backward: the tokens are ordered by id (each counts how many come before it:
/// tokens^2 comparisons, 20 us at 8192 tokens and 0.3 ms at 65536), then a block owns the first token of an id and sums that id's rows; no atomics.
/// Bytes: forward tokens (4 + 4 hidden); backward 2 tokens hidden read, the table's 2 vocabulary hidden zeroed and touched rows written.

#include "kernels/base/pack.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/embedding/op.hpp"

namespace moeplan::cuda {
namespace {

struct LookUp {
  static constexpr int unroll = 2;
  const std::int32_t* ids;
  const bf16* w;
  bf16* y;
  i64 vocabulary;
  float scale;
  RowOf rows;
  template <int V>
  struct Piece {
    Pack<bf16, V> w;
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const {
    i64 row, column;
    rows(i, row, column);
    const i64 id = ids[row];
    if (id < 0 || id >= vocabulary) return {Pack<bf16, V>::of({})};
    return {cuda::load<V, false>(w + id * rows.width + column)};
  }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const {
    float v[V];
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = scale * p.w[j];
    cuda::store<V>(y + i, v);
  }
};

constexpr int sort_threads = 256, sum_threads = 128;

/// order[p] = the token that is p-th by (id, token).
__global__ void __launch_bounds__(sort_threads) order_tokens(int tokens, const std::int32_t* ids, std::int32_t* order) {
  __shared__ std::int32_t tile[sort_threads];
  const int t = blockIdx.x * sort_threads + threadIdx.x;
  const std::int32_t mine = t < tokens ? ids[t] : 0;
  int before = 0;
  for (int base = 0; base < tokens; base += sort_threads) {
    __syncthreads();
    if (base + static_cast<int>(threadIdx.x) < tokens) tile[threadIdx.x] = ids[base + threadIdx.x];
    __syncthreads();
    const int count = min(sort_threads, tokens - base);
#pragma unroll 8
    for (int i = 0; i < count; ++i) before += tile[i] < mine || (tile[i] == mine && base + i < t);
  }
  if (t < tokens) order[before] = t;
}

/// Blocks in x: sorted places; in y: slices of the columns.
template <int V>
__global__ void __launch_bounds__(sum_threads) sum_rows(int tokens, i64 vocabulary, i64 hidden, float scale, const std::int32_t* ids, const std::int32_t* order,
                                                        const bf16* dy, bf16* dw) {
  const int place = static_cast<int>(blockIdx.x);
  const std::int32_t id = ids[order[place]];
  if (id < 0 || id >= vocabulary || (place > 0 && ids[order[place - 1]] == id)) return;
  const i64 column = (static_cast<i64>(blockIdx.y) * sum_threads + threadIdx.x) * V;
  if (column >= hidden) return;
  float sum[V] = {};
  constexpr int ahead = 4;
  for (int q = place;; q += ahead) {
    Pack<bf16, V> row[ahead];
    bool same[ahead];
#pragma unroll
    for (int u = 0; u < ahead; ++u) {
      const std::int32_t t = q + u < tokens ? order[q + u] : -1;
      same[u] = t >= 0 && ids[t] == id;
      if (same[u]) row[u] = load<V>(dy + t * hidden + column);
    }
#pragma unroll
    for (int u = 0; u < ahead; ++u)
      if (same[u])
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += row[u][j];
    if (!same[ahead - 1]) break;
  }
#pragma unroll
  for (int j = 0; j < V; ++j) sum[j] *= scale;
  store<V>(dw + id * hidden + column, sum);
}

}  // namespace

void forward(const op::Embedding& op, const Frame& f) {
  const LookUp a{f["ids"].as<std::int32_t>(), f["w"].as<bf16>(), f["y"].as<bf16>(), op.vocabulary, static_cast<float>(op.scale),
                 RowOf::of(op.hidden, op.tokens * op.hidden)};
  pointwise(op.tokens * op.hidden, op.hidden % 8 == 0 && aligned({a.w, a.y}), a, f.stream(), "embedding forward");
}

void backward(const op::Embedding& op, const Frame& f) {
  bf16* dw = f.d("w").as<bf16>();
  if (dw == nullptr) return;
  kernels::check(cudaMemsetAsync(dw, 0, sizeof(bf16) * static_cast<std::size_t>(op.vocabulary * op.hidden), f.stream()), "zero the gradient of the table");
  if (op.tokens == 0) return;
  const auto* ids = f["ids"].as<std::int32_t>();
  const bf16* dy = f.d("y").as<bf16>();
  auto* order = f.scratch<std::int32_t>();
  const int tokens = static_cast<int>(op.tokens);
  order_tokens<<<static_cast<unsigned>((tokens + sort_threads - 1) / sort_threads), sort_threads, 0, f.stream()>>>(tokens, ids, order);
  kernels::check_launch("embedding backward: order", "tokens=" + std::to_string(tokens));
  const bool wide = op.hidden % 8 == 0 && aligned({dy, dw});
  const i64 packs = wide ? op.hidden / 8 : op.hidden;
  const dim3 blocks(static_cast<unsigned>(tokens), static_cast<unsigned>((packs + sum_threads - 1) / sum_threads));
  const auto scale = static_cast<float>(op.scale);
  if (wide) sum_rows<8><<<blocks, sum_threads, 0, f.stream()>>>(tokens, op.vocabulary, op.hidden, scale, ids, order, dy, dw);
  else sum_rows<1><<<blocks, sum_threads, 0, f.stream()>>>(tokens, op.vocabulary, op.hidden, scale, ids, order, dy, dw);
  kernels::check_launch("embedding backward", "tokens=" + std::to_string(tokens) + " hidden=" + std::to_string(op.hidden));
}

std::string refusal(const op::Embedding& op) {
  if (op.lora_rank > 0) return "has no CUDA kernel for a LoRA pair of rank " + std::to_string(op.lora_rank) + " on the table";
  if (op.tokens > std::numeric_limits<std::int32_t>::max()) return std::to_string(op.tokens) + " tokens are more than 2^31";
  if (op.hidden > (1 << 22)) return std::to_string(op.hidden) + " columns are more than 2^22";
  return {};
}
std::int64_t scratch(const op::Embedding& op, Pass pass, Wants wants) {
  return pass == Pass::backward && wants.weight_grad && op.training == Training::full ? 4 * op.tokens : 0;
}

}  // namespace moeplan::cuda
