/// \file
/// Outputs of a chunk and head: 8 warps of 16 tokens. Operations a token: 2 n p (the state) + 2 128 (n + p) (pairs,
/// half of them masked; halves of 64 columns that lie wholly ahead are left out). q and k of a group come from the
/// second-level cache for all heads but the first.

#include "kernels/attention/launch.cuh"
#include "kernels/mamba2/chunks.cuh"

namespace moeplan::cuda::ssd {
namespace {

constexpr int threads = 256, half = 64;

template <class Size>
constexpr std::size_t shared_bytes = 2 * (rows * (2 * Size::n + Size::p) + Size::n * Size::p);

template <class Size>
__global__ void __launch_bounds__(threads) chunk_output(const Problem p) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ Gate gate;
  const int chunk = static_cast<int>(blockIdx.x / p.heads), head = static_cast<int>(blockIdx.x % p.heads),
            group = head / (p.heads / p.groups);
  const i64 token = static_cast<i64>(chunk) * rows;
  const std::uint32_t q_tile = ptx::shared_address(memory), k_tile = q_tile + 2 * rows * Size::n,
                      v_tile = k_tile + 2 * rows * Size::n, s_tile = v_tile + 2 * rows * Size::p;
  load_tile<rows, Size::n, threads>(q_tile, p.keys(p.q, group), token, p.tokens, p.vectors);
  load_tile<rows, Size::n, threads>(k_tile, p.keys(p.k, group), token, p.tokens, p.vectors);
  load_tile<rows, Size::p, threads>(v_tile, p.values(p.v, head), token, p.tokens, p.vectors);
  load_tile<Size::n, Size::p, threads>(s_tile, Rows{p.state(p.states, chunk, head), p.pitch, p.pitch}, 0, p.n, true);
  ptx::copy_commit();
  gate.load(p, chunk, head);
  ptx::copy_wait<0>();
  __syncthreads();
  if (gate.several()) {
    take_out<Size::p, threads>(v_tile, [&](int token) { gate.spoil(token); });
    __syncthreads();
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * 16;
  const int mine[2] = {row + lane / 4, row + lane / 4 + 8};
  float y[Size::p / 8][4] = {};
  rows_by_columns<rows, Size::n, Size::p>(y, q_tile, row, s_tile);
  const float entered[2] = {gate.entered(mine[0]), gate.entered(mine[1])};
#pragma unroll
  for (int j = 0; j < Size::p / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) y[j][e] = passed(entered[e / 2], y[j][e]);
#pragma unroll 1
  for (int from = 0; from <= row; from += half) {
    float z[half / 8][4] = {};
    rows_by_rows<rows, rows, half, Size::n>(z, q_tile, row, k_tile, from);
#pragma unroll
    for (int j = 0; j < half / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = from + 8 * j + lane % 4 * 2 + e % 2;
        z[j][e] = passed(gate.weight(mine[e / 2], key), z[j][e]);
      }
    std::uint32_t left[half / 16][4];
    attention::as_left<half>(z, left);
    fragment_by_columns<rows, half, Size::p>(y, left, v_tile, from);
  }
  const float skip = p.skip != nullptr ? p.skip[head] : 0.0f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (token + mine[r] >= p.tokens) continue;
    bf16* to = p.y + ((token + mine[r]) * p.heads + head) * p.p;
#pragma unroll
    for (int j = 0; j < Size::p / 8; ++j) {
      const int column = 8 * j + lane % 4 * 2;
      const float2 v = pair_of<rows>(v_tile, mine[r], column);
      store_pair(to, column, p.p, fmaf(skip, v.x, y[j][2 * r]), fmaf(skip, v.y, y[j][2 * r + 1]), p.vectors);
    }
  }
}

}  // namespace

void outputs(const Problem& p, cudaStream_t stream) {
  with_size(p, [&]<class Size>(Size) {
    attention::launch(chunk_output<Size>, static_cast<std::int64_t>(p.chunks) * p.heads, threads, shared_bytes<Size>,
                      stream, "scan outputs", shape(p), p);
  });
}

}  // namespace moeplan::cuda::ssd
