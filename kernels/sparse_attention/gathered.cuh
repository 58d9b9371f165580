#pragma once
/// Attention of each query to keys of its own: what `sparse_attention` and `compressed_attention` have in common. A
/// block has up to 64 heads of one query as the rows of its products and walks that query's keys in tiles of 64,
/// gathered row by row into shared memory.
///
/// A query's keys are numbered by slots: first the `window` plain keys that end with itself, then the chosen ones
/// (those that `indices` names, `block` keys an index, or every complete run of `ratio` tokens). Rows of both tensors
/// have one numbering: plain keys first.

#include <climits>

#include "kernels/attention/tiles.cuh"

namespace moeplan::cuda::gathered {

namespace ptx = kernels::ptx;
using attention::chunk_at;

inline constexpr int tile_keys = 64, tile_heads = 64;

/// Padded widths: the latent form reads values as the first columns of its keys; the other form has values of their
/// own.
template <bool is_latent>
struct Form {
  static constexpr bool latent = is_latent;
  static constexpr int qk = is_latent ? 576 : 128, v = is_latent ? 512 : 128;
};

struct Problem {
  const bf16 *q, *plain, *chosen, *values;  ///< [queries, heads d_qk], [plain_rows, kv_heads d_qk], [chosen_rows,
                                            ///< kv_heads d_qk], [chosen_rows, kv_heads d_v] or null
  const std::int32_t* indices;              ///< [queries, topk] or null: every complete run
  const float* sinks;                       ///< [heads] or null
  bf16* y;
  float* lse;  ///< [queries, heads]
  const bf16* dy = nullptr;
  bf16* dq = nullptr;
  unsigned long long *dkeys = nullptr, *dvalues = nullptr;  ///< fixed point, rows as the keys' (plain first)
  const float* delta = nullptr;                             ///< [queries, heads], <y, dy>
  const float* factor = nullptr;  ///< what a gradient is multiplied by before it becomes an integer
  int queries = 0, plain_rows = 0, chosen_rows = 0, heads = 0, kv_heads = 1, group = 0, d_qk = 0, d_v = 0;
  int topk = 0, block = 1, window = 0, ratio = 0, length = INT_MAX, missing = 0;
  bool below_self = false;  ///< chosen keys behind the query are hidden
  bool vectors = false;     ///< every row of 8 columns starts on 16 bytes
  float scale = 0;
};

/// Blocks of a head group: one for each 64 heads.
__host__ __device__ inline int parts(const Problem& p) { return (p.group + tile_heads - 1) / tile_heads; }

/// The work of a block: heads [head, head + heads) of one query, all of one key head. Late queries, which see most,
/// come first.
struct Place {
  int query, kv, head, heads;
};
__device__ __forceinline__ Place place(const Problem& p) {
  const int part = static_cast<int>(blockIdx.x) % parts(p), rest = static_cast<int>(blockIdx.x) / parts(p);
  const int kv = rest % p.kv_heads, first = part * tile_heads;
  return {p.queries - 1 - rest / p.kv_heads, kv, kv * p.group + first, min(tile_heads, p.group - first)};
}

/// The keys of one query.
struct Keys {
  int begin, near, slots;  ///< first token of its sequence, plain keys, keys in all
};

/// All threads of the block. Slots behind the last index that names a key are left out.
__device__ __forceinline__ Keys keys_of(const Problem& p, int query) {
  __shared__ int last;
  const int begin = query / p.length * p.length, at = query - begin + 1, near = min(p.window, at);
  if (p.indices == nullptr) return {begin, near, near + (p.ratio > 0 ? at / p.ratio : 0)};
  if (threadIdx.x == 0) last = 0;
  __syncthreads();
  int mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < p.topk; i += static_cast<int>(blockDim.x))
    if (p.indices[static_cast<i64>(query) * p.topk + i] >= 0) mine = i + 1;
  if (mine > 0) atomicMax(&last, mine);
  __syncthreads();
  return {begin, near, near + last * p.block};
}

/// Row of the key at `slot`, -1 for none.
__device__ __forceinline__ int row_of(const Problem& p, const Keys& keys, int query, int slot) {
  if (slot >= keys.slots) return -1;
  if (slot < keys.near) return query - keys.near + 1 + slot;
  slot -= keys.near;
  if (p.indices == nullptr) {
    const int row = keys.begin / p.ratio + slot;
    return row < p.chosen_rows ? p.plain_rows + row : -1;
  }
  const int index = p.indices[static_cast<i64>(query) * p.topk + slot / p.block];
  const i64 row = static_cast<i64>(index) * p.block + slot % p.block;
  return index < 0 || row >= p.chosen_rows || (p.below_self && row > query + p.missing)
             ? -1
             : p.plain_rows + static_cast<int>(row);
}

/// The rows named in `table` to a tile of 64 rows; columns from `width` on and rows of -1 are zero. All threads; ends
/// without waiting.
template <int columns, int threads>
__device__ __forceinline__ void load_rows(std::uint32_t tile, const Problem& p, const int* table, const bf16* plain,
                                          const bf16* chosen, i64 pitch, int width) {
  constexpr int chunks = columns / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < tile_keys * chunks; i += threads) {
    const int slot = i / chunks, column = i % chunks * 8, row = table[slot];
    const std::uint32_t to = chunk_at<tile_keys>(tile, slot, column);
    const bool valid = row >= 0 && column < width;
    const bf16* line = row < p.plain_rows ? plain + row * pitch : chosen + (row - p.plain_rows) * pitch;
    if (p.vectors) {
      ptx::copy_16(to, valid ? line + column : p.q, valid);
      continue;
    }
    std::uint32_t word[4] = {};
    for (int j = 0; valid && j < 8 && column + j < width; ++j)
      word[j / 2] |= static_cast<std::uint32_t>(__bfloat16_as_ushort(line[column + j])) << (j % 2 * 16);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
  }
}

/// c[16, 8 n8] += a b^T: rows [row_a, +16) of tile a, rows [row_b, +8 n8) of tile b (64 rows each), over `depth`
/// columns.
template <int n8, int depth>
__device__ __forceinline__ void multiply_transposed(float (&c)[n8][4], std::uint32_t a, int row_a, std::uint32_t b,
                                                    int row_b) {
  const int lane = threadIdx.x % 32;
#pragma unroll 2
  for (int panel = 0; panel < depth; panel += 64)
#pragma unroll
    for (int k = panel; k < panel + 64; k += 16) {
      std::uint32_t left[4];
      ptx::load_matrix_x4(left, chunk_at<64>(a, row_a + lane % 16, k + lane / 16 * 8));
#pragma unroll
      for (int j = 0; j < n8; j += 2) {
        std::uint32_t both[4];
        ptx::load_matrix_x4(both, chunk_at<64>(b, row_b + 8 * j + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8));
        ptx::mma_bf16(c[j], left, {both[0], both[1]});
        ptx::mma_bf16(c[j + 1], left, {both[2], both[3]});
      }
    }
}

/// c[16, 8 n8] += a b over the 64 rows of tile b, columns [column, +8 n8) of it. Rows [row, +16) of tile a, or with
/// `turned` its columns.
template <int n8, bool turned>
__device__ __forceinline__ void multiply(float (&c)[n8][4], std::uint32_t a, int row, std::uint32_t b, int column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 64; k += 16) {
    std::uint32_t left[4];
    if constexpr (turned)
      ptx::load_matrix_x4_transposed(left, chunk_at<64>(a, k + lane / 16 * 8 + lane % 8, row + lane / 8 % 2 * 8));
    else
      ptx::load_matrix_x4(left, chunk_at<64>(a, row + lane % 16, k + lane / 16 * 8));
#pragma unroll
    for (int j = 0; j < n8; j += 2) {
      std::uint32_t both[4];
      ptx::load_matrix_x4_transposed(both, chunk_at<64>(b, k + lane % 16, column + 8 * j + lane / 16 * 8));
      ptx::mma_bf16(c[j], left, {both[0], both[1]});
      ptx::mma_bf16(c[j + 1], left, {both[2], both[3]});
    }
  }
}

/// Two neighbouring values of a tile as bf16.
__device__ __forceinline__ void put_pair(std::uint32_t tile, int row, int column, float a, float b) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(chunk_at<64>(tile, row, column) + column % 8 * 2),
               "r"(ptx::pack_bf16(a, b))
               : "memory");
}

std::string shape(const Problem& p);
void forward(const Problem& p, cudaStream_t stream);
/// dq, and the keys' and values' gradients added to the fixed-point accumulators.
void backward(const Problem& p, cudaStream_t stream);
/// delta = <y, dy> row by row; the sinks' gradient from it.
void row_sums(const Problem& p, float* delta, cudaStream_t stream);
void sink_gradient(const Problem& p, float* dsinks, cudaStream_t stream);

/// Scratch of a backward whose keys' gradients are wanted, after the row sums: the accumulators and what they are
/// scaled by.
struct Accumulators {
  std::int64_t keys = 0, values = 0;  ///< elements
  [[nodiscard]] std::int64_t bytes() const;
};
/// Clears the accumulators at `memory`, chooses the factor and sets dkeys, dvalues and factor of `p`.
void open(Problem& p, const Accumulators& sizes, char* memory, cudaStream_t stream);
/// Reads `count` elements from element `first` of an accumulator back as bf16.
void close(const Problem& p, const unsigned long long* from, std::int64_t count, bf16* to, cudaStream_t stream);

}  // namespace moeplan::cuda::gathered
