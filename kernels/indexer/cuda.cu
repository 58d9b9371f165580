/// DSA's lightning indexer on the GPU: scores of a band of queries in fp32, then the selection of each row; bands so
/// that the scores take 64 MiB.
///
/// Scores: a block has 256 keys, 32 a warp in registers as the left operand of mma.sync (rows are keys, columns are
/// heads), and walks 16 queries, 64 heads at a time through two tiles in shared memory. A head's weight and its relu
/// are applied to the fragment; a row's sum over the heads ends in four neighbouring lanes. By count 2 x 64 x dim
/// operations a key and 64 heads; shared memory is read at 128 B a cycle for as long. Selection: a block a row. The
/// k-th largest score by four passes over counts of 8 bits each, then one pass that writes, in the order of the keys,
/// what is larger and the first of what is equal. No floating-point sum depends on the order of blocks.

#include <algorithm>
#include <climits>

#include "kernels/attention/launch.cuh"
#include "kernels/attention/tiles.cuh"
#include "kernels/cuda.hpp"

namespace moeplan::cuda {
namespace {

namespace ptx = kernels::ptx;
using Op = op::Indexer;

constexpr int block_keys = 256, block_queries = 16, tile_heads = 64, score_threads = 256, select_threads = 512;
constexpr i64 band_bytes = i64{64} << 20;

struct Problem {
  const bf16 *q, *k, *weights;
  const std::int32_t* starts;  ///< [sequences + 1] or null: equal lengths
  int2* visible;               ///< [tokens], first key and number of keys
  float* scores;               ///< [rows of a band, pitch]
  std::int32_t* indices;
  int tokens, keys, pitch, heads, dim, topk, ratio, missing, sequences;
  i64 length;
  bool vectors;
};

/// Which keys each query sees: those that are complete when it comes.
__global__ void __launch_bounds__(256) find_visible(const Problem p) {
  const int t = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  if (t >= p.tokens) return;
  const i64 at = static_cast<i64>(t) + p.missing;
  i64 begin = p.starts == nullptr ? at / p.length * p.length : -1;
  if (p.starts != nullptr) {
    int low = 0, high = p.sequences;  // the last sequence that begins at or before the query
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (p.starts[middle] <= at ? low : high) = middle;
    }
    if (p.starts[low] <= at && at < p.starts[low + 1]) begin = p.starts[low];
  }
  const int first = begin < 0 ? 0 : static_cast<int>(begin / p.ratio),
            count = begin < 0 ? 0 : static_cast<int>((at - begin + 1) / p.ratio);
  p.visible[t] = {min(first, p.keys), min(count, p.keys - min(first, p.keys))};
}

__device__ __forceinline__ std::uint32_t pair_at(const bf16* row, int column, int width, bool vectors) {
  if (vectors) return column < width ? *reinterpret_cast<const std::uint32_t*>(row + column) : 0;
  const std::uint32_t low = column < width ? __bfloat16_as_ushort(row[column]) : 0,
                      high = column + 1 < width ? __bfloat16_as_ushort(row[column + 1]) : 0;
  return low | high << 16;
}

template <int D>
__global__ void __launch_bounds__(score_threads) score(const Problem p, int band, int rows) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ float weights[2][tile_heads];
  const int first_row = static_cast<int>(blockIdx.y) * block_queries, end_row = min(first_row + block_queries, rows),
            tile_key = static_cast<int>(blockIdx.x) * block_keys;
  int low = INT_MAX, high = 0;  // keys that some query of the block sees
  for (int row = first_row; row < end_row; ++row) {
    const int2 seen = p.visible[band + row];
    if (seen.y > 0) low = min(low, seen.x), high = max(high, seen.x + seen.y);
  }
  if (tile_key >= high || tile_key + block_keys <= low) return;
  const std::uint32_t tiles = ptx::shared_address(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = (p.heads + tile_heads - 1) / tile_heads,
            steps = (end_row - first_row) * chunks;
  const auto start = [&](int step) {  // heads [64 c, +64) of a query
    const i64 t = band + first_row + step / chunks;
    const int head = step % chunks * tile_heads;
    attention::load_tile<tile_heads, D, score_threads>(
        tiles + step % 2 * 128 * D, {p.q + t * p.heads * p.dim, p.dim, p.dim}, head, p.heads, p.vectors);
    ptx::copy_commit();
    if (threadIdx.x < tile_heads)
      weights[step % 2][threadIdx.x] =
          head + static_cast<int>(threadIdx.x) < p.heads ? widened(p.weights[t * p.heads + head + threadIdx.x]) : 0;
  };
  start(0);
  std::uint32_t keys[2][D / 16][4];  // 32 rows of keys
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int s = 0; s < D / 16; ++s)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int key = tile_key + warp * 32 + m * 16 + lane / 4 + r % 2 * 8,
                  column = s * 16 + lane % 4 * 2 + r / 2 * 8;
        keys[m][s][r] = key < p.keys ? pair_at(p.k + static_cast<i64>(key) * p.dim, column, p.dim, p.vectors) : 0;
      }
  float sums[2][2] = {};
  for (int step = 0; step < steps; ++step) {
    ptx::copy_wait<0>();
    __syncthreads();  // this tile has landed, the last one is read
    if (step + 1 < steps) start(step + 1);
    const std::uint32_t tile = tiles + step % 2 * 128 * D;
#pragma unroll
    for (int j = 0; j < tile_heads; j += 16) {
      float c[2][2][4] = {};
#pragma unroll
      for (int s = 0; s < D / 16; ++s) {
        std::uint32_t both[4];
        ptx::load_matrix_x4(
            both, attention::chunk_at<tile_heads>(tile, j + lane / 16 * 8 + lane % 8, s * 16 + lane / 8 % 2 * 8));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          ptx::mma_bf16(c[m][0], keys[m][s], {both[0], both[1]});
          ptx::mma_bf16(c[m][1], keys[m][s], {both[2], both[3]});
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float w = weights[step % 2][j + 8 * n + lane % 4 * 2 + e % 2];
#pragma unroll
          for (int m = 0; m < 2; ++m) sums[m][e / 2] = fmaf(w, fmaxf(c[m][n][e], 0.0f), sums[m][e / 2]);
        }
    }
    if (step % chunks != chunks - 1) continue;
    const int row = first_row + step / chunks;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float sum = sums[m][r];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0)
          p.scores[static_cast<i64>(row) * p.pitch + tile_key + warp * 32 + m * 16 + r * 8 + lane / 4] = sum;
        sums[m][r] = 0;
      }
  }
}

/// Unsigned integers in the order of the scores.
__device__ __forceinline__ std::uint32_t ordered(float score) {
  const std::uint32_t bits = __float_as_uint(score);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

__global__ void __launch_bounds__(select_threads) select(const Problem p, int band) {
  __shared__ int counts[256];
  __shared__ std::uint32_t prefix;  // bits of the k-th largest found so far
  __shared__ int wanted;            // how many of those that share them are among the k
  __shared__ int2 warp_counts[select_threads / 32];
  const int row = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int2 seen = p.visible[band + row];
  std::int32_t* const out = p.indices + static_cast<i64>(band + row) * p.topk;
  if (seen.y <= p.topk) {
    for (int i = static_cast<int>(threadIdx.x); i < p.topk; i += select_threads) out[i] = i < seen.y ? seen.x + i : -1;
    return;
  }
  const float* const scores = p.scores + static_cast<i64>(row) * p.pitch + seen.x;
  if (threadIdx.x == 0) prefix = 0, wanted = p.topk;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) counts[threadIdx.x] = 0;
    __syncthreads();
    const std::uint32_t known = prefix, mask = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
    for (int i = static_cast<int>(threadIdx.x); i < seen.y; i += select_threads)
      if (const std::uint32_t bits = ordered(scores[i]); (bits & mask) == known)
        atomicAdd(&counts[bits >> shift & 255], 1);
    __syncthreads();
    if (warp == 0) {  // the byte at which the counts from above reach what is wanted; lane l has bytes 255 - 8 l and
                      // the seven below
      int own[8], sum = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += own[j] = counts[255 - 8 * lane - j];
      int before = sum;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, before, step);
        if (lane >= step) before += other;
      }
      before -= sum;
      const int need = wanted;
      __syncwarp();  // everyone has read it
      if (before < need && before + sum >= need)
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (before < need && before + own[j] >= need)
            prefix = known | static_cast<std::uint32_t>(255 - 8 * lane - j) << shift, wanted = need - before;
          before += own[j];
        }
    }
    __syncthreads();
  }
  const std::uint32_t threshold = prefix;
  const int equal_wanted = wanted;
  int larger_before = 0, equal_before = 0;  // among the keys of earlier rounds
  for (int base = 0; base < seen.y; base += select_threads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const std::uint32_t bits = i < seen.y ? ordered(scores[i]) : 0;
    const bool larger = i < seen.y && bits > threshold, equal = i < seen.y && bits == threshold;
    const unsigned larger_votes = __ballot_sync(~0u, larger), equal_votes = __ballot_sync(~0u, equal),
                   below = (1u << lane) - 1;
    if (lane == 0) warp_counts[warp] = {__popc(larger_votes), __popc(equal_votes)};
    __syncthreads();
    int larger_at = larger_before + __popc(larger_votes & below), equal_at = equal_before + __popc(equal_votes & below);
    for (int w = 0; w < select_threads / 32; ++w) {
      const int2 each = warp_counts[w];
      if (w < warp) larger_at += each.x, equal_at += each.y;
      larger_before += each.x, equal_before += each.y;
    }
    if (larger || (equal && equal_at < equal_wanted)) out[larger_at + min(equal_at, equal_wanted)] = seen.x + i;
    __syncthreads();  // the counts have been read
  }
}

std::int64_t pitch_of(const Op& op) { return (op.keys() + block_keys - 1) / block_keys * block_keys; }
/// Queries whose scores fit a band, a multiple of a block's.
std::int64_t band_of(const Op& op) {
  const std::int64_t fits = band_bytes / (4 * std::max<std::int64_t>(pitch_of(op), 1)) / block_queries * block_queries;
  return std::clamp<std::int64_t>(fits, block_queries, (op.tokens + block_queries - 1) / block_queries * block_queries);
}

}  // namespace

void forward(const Op& op, const Frame& f) {
  if (op.tokens == 0) return;
  Problem p{};
  p.q = f["q"].as<bf16>(), p.k = f["k"].as<bf16>(), p.weights = f["head_weights"].as<bf16>(),
  p.starts = f["starts"].as<std::int32_t>();
  p.visible = f.scratch<int2>(), p.scores = reinterpret_cast<float*>(f.scratch<char>() + aligned_bytes(8 * op.tokens)),
  p.indices = f["indices"].as<std::int32_t>();
  p.tokens = static_cast<int>(op.tokens), p.keys = static_cast<int>(op.keys()),
  p.pitch = static_cast<int>(pitch_of(op)), p.heads = static_cast<int>(op.heads), p.dim = static_cast<int>(op.dim);
  p.topk = static_cast<int>(op.topk), p.ratio = static_cast<int>(std::min<std::int64_t>(op.key_ratio, INT_MAX)),
  p.length = op.sequence_length;
  p.missing = static_cast<int>(op.kv_tokens ? op.kv_tokens - op.tokens : 0),
  p.sequences = static_cast<int>(op.packed_sequences);
  p.vectors = op.dim % 8 == 0 && aligned({p.q, p.k});
  const std::string what = "tokens=" + std::to_string(op.tokens) + " keys=" + std::to_string(op.keys()) +
                           " heads=" + std::to_string(op.heads) + " dim=" + std::to_string(op.dim);
  find_visible<<<static_cast<unsigned>((op.tokens + 255) / 256), 256, 0, f.stream()>>>(p);
  kernels::check_launch("indexer visible keys", what);
  const auto run = [&]<int D>() {
    constexpr std::size_t shared = 2 * 128 * D;
    kernels::check(
        cudaFuncSetAttribute(score<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "shared memory of the indexer");
    for (std::int64_t band = 0; band < op.tokens; band += band_of(op)) {
      const auto rows = static_cast<int>(std::min(band_of(op), op.tokens - band));
      if (p.keys > 0)
        score<D><<<dim3(static_cast<unsigned>(p.pitch / block_keys),
                        static_cast<unsigned>((rows + block_queries - 1) / block_queries)),
                   score_threads, shared, f.stream()>>>(p, static_cast<int>(band), rows);
      kernels::check_launch("indexer scores", what);
      select<<<static_cast<unsigned>(rows), select_threads, 0, f.stream()>>>(p, static_cast<int>(band));
      kernels::check_launch("indexer selection", what);
    }
  };
  if (op.dim <= 64)
    run.operator()<64>();
  else
    run.operator()<128>();
}

void backward(const Op&, const Frame&) {}  // the selection has no gradient

std::string refusal(const Op& op) {
  if (op.dim > 128) return "index heads of " + std::to_string(op.dim) + " columns; its CUDA kernels hold 128";
  if (op.tokens > (1 << 30) || op.keys() > (1 << 28) || op.topk > (1 << 30))
    return std::to_string(op.tokens) + " queries of " + std::to_string(op.keys()) +
           " keys are more than its CUDA kernels count";
  if (op.kv_tokens != 0 && op.kv_tokens < op.tokens)
    return std::to_string(op.tokens) + " queries and only " + std::to_string(op.kv_tokens) + " tokens behind the keys";
  return {};
}

/// Which keys each query sees, and a band of scores.
std::int64_t scratch(const Op& op, Pass pass, Wants) {
  if (pass == Pass::backward || op.tokens == 0) return 0;
  return aligned_bytes(8 * op.tokens) + 4 * band_of(op) * pitch_of(op);
}

}  // namespace moeplan::cuda
