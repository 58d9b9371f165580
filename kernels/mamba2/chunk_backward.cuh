#pragma once
/// Around both backward kernels of a chunk: a block has the heads [first, end) of one group, one after the other, so
/// that dq and dk of the group add up in registers; what several blocks share goes to parts that are summed in order.

#include "kernels/mamba2/chunks.cuh"
#include "kernels/shared_memory.hpp"

namespace moeplan::cuda::ssd {

constexpr int backward_threads = 256;

/// q, k; dy, v; one state or its gradient.
template <class Size>
constexpr std::size_t backward_bytes = 2 * (2 * rows * (Size::n + Size::p) + Size::n * Size::p);
static_assert(shared_memory::scan_wide_states == backward_bytes<Size<128, 64>>);
static_assert(shared_memory::scan_wide_heads == backward_bytes<Size<128, 128>>);

struct Share {
  int chunk, group, part, first, end;
};
__device__ __forceinline__ Share share_of(const Problem& p) {
  const int block = static_cast<int>(blockIdx.x), part = block % p.parts, group = block / p.parts % p.groups,
            chunk = block / p.parts / p.groups;
  const int heads = p.heads / p.groups, each = heads / p.parts;
  return {chunk, group, part, group * heads + part * each, group * heads + (part + 1) * each};
}

template <class Size>
struct Tiles {
  std::uint32_t q, k, dy, v, state;
  __device__ __forceinline__ static Tiles in(char* memory) {
    const std::uint32_t q = ptx::shared_address(memory), k = q + 2 * rows * Size::n, dy = k + 2 * rows * Size::n,
                        v = dy + 2 * rows * Size::p;
    return {q, k, dy, v, v + 2 * rows * Size::p};
  }
  __device__ __forceinline__ void load_keys(const Problem& p, const Share& s) const {
    const i64 token = static_cast<i64>(s.chunk) * rows;
    load_tile<rows, Size::n, backward_threads>(q, p.keys(p.q, s.group), token, p.tokens, p.vectors);
    load_tile<rows, Size::n, backward_threads>(k, p.keys(p.k, s.group), token, p.tokens, p.vectors);
  }
  /// dy, v, the given state and the gate of one head, landed behind its last barrier.
  __device__ __forceinline__ void load_head(const Problem& p, const Share& s, int head, bf16* states,
                                            Gate& gate) const {
    const i64 token = static_cast<i64>(s.chunk) * rows;
    __syncthreads();  // nobody reads the head before any more
    load_tile<rows, Size::p, backward_threads>(dy, p.values(p.dy, head), token, p.tokens, p.vectors);
    load_tile<rows, Size::p, backward_threads>(v, p.values(p.v, head), token, p.tokens, p.vectors);
    load_tile<Size::n, Size::p, backward_threads>(state, Rows{p.state(states, s.chunk, head), p.pitch, p.pitch}, 0, p.n,
                                                  true);
    ptx::copy_commit();
    gate.load(p, s.chunk, head);
    ptx::copy_wait<0>();
    __syncthreads();
  }
  /// Behind load_head, of q or k, which stay for all heads (`none`: their tokens that were taken out with the first).
  __device__ __forceinline__ void take_out_keys(std::uint32_t tile, bool with_first, Gate& gate,
                                                bool (&none)[rows]) const {
    if (!gate.several()) return;
    const int token = static_cast<int>(threadIdx.x);
    if (with_first) {
      if (token < rows) none[token] = false;
      __syncthreads();
      take_out<Size::n, backward_threads>(tile, [&](int row) { none[row] = true; });
      __syncthreads();
    }
    if (token < rows && none[token]) gate.spoil(token);
    __syncthreads();
  }
  __device__ __forceinline__ void take_out_head(Gate& gate) const {
    if (!gate.several()) return;
    take_out<Size::p, backward_threads>(dy, [&](int row) { gate.spoil(row); });
    __syncthreads();
  }
};

/// Writes a warp's 16 rows of dq or dk, or of this block's part of it.
template <int N>
__device__ __forceinline__ void store_keys(const Problem& p, const Share& s, const float (&d)[N / 8][4], int row,
                                           bf16* out, float* parts) {
  const int lane = threadIdx.x % 32;
  const i64 pitch = static_cast<i64>(p.groups) * p.n;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const i64 token = static_cast<i64>(s.chunk) * rows + row + lane / 4 + 8 * r;
    if (token >= p.tokens) continue;
    const i64 at = token * pitch + static_cast<i64>(s.group) * p.n;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      const int column = 8 * j + lane % 4 * 2;
      if (parts == nullptr) {
        store_pair(out + at, column, p.n, d[j][2 * r], d[j][2 * r + 1], p.vectors);
        continue;
      }
      float* to = parts + static_cast<i64>(s.part) * p.tokens * pitch + at;
      if (column < p.n) to[column] = d[j][2 * r];
      if (column + 1 < p.n) to[column + 1] = d[j][2 * r + 1];
    }
  }
}

}  // namespace moeplan::cuda::ssd
