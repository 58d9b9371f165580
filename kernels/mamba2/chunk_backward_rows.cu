/// \file
/// dq of a chunk and a group's heads, and the sums over rows: 8 warps of 16 tokens, each the owner of its rows' sums.
/// Operations a token and head: 2 n p (the state) + 2 128 (2 n + p), half of the latter masked.

#include "kernels/attention/launch.cuh"
#include "kernels/mamba2/chunk_backward.cuh"

namespace moeplan::cuda::ssd {
namespace {

template <class Size>
__global__ void __launch_bounds__(backward_threads, 1) row_gradients(const Problem p) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ Gate gate;
  constexpr int n = Size::stream, side = 64;
  const Share s = share_of(p);
  const Tiles<Size> tiles = Tiles<Size>::in(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * 16;
  const int mine[2] = {row + lane / 4, row + lane / 4 + 8};
  tiles.load_keys(p, s);
  __shared__ bool none[rows];
  float dq[Size::n / 8][4] = {};
#pragma unroll 1
  for (int head = s.first; head < s.end; ++head) {
    tiles.load_head(p, s, head, p.states, gate);
    tiles.take_out_keys(tiles.k, head == s.first, gate, none);
    float sum[2] = {}, through_state[2] = {};
#pragma unroll 1
    for (int from = 0; from < row + 16; from += n) {
      float z[n / 8][4] = {}, d[n / 8][4] = {};
      rows_by_rows<rows, rows, n, Size::n>(z, tiles.q, row, tiles.k, from);
      rows_by_rows<rows, rows, n, Size::p>(d, tiles.dy, row, tiles.v, from);
#pragma unroll
      for (int j = 0; j < n / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = from + 8 * j + lane % 4 * 2 + e % 2;
          d[j][e] = passed(gate.weight(mine[e / 2], key), d[j][e]);
          if (key != mine[e / 2]) sum[e / 2] = fmaf(d[j][e], where(d[j][e], z[j][e]), sum[e / 2]);
        }
      std::uint32_t left[n / 16][4];
      attention::as_left<n>(d, left);
      fragment_by_columns<rows, n, Size::n>(dq, left, tiles.k, from);
    }
    const float entered[2] = {gate.entered(mine[0]), gate.entered(mine[1])};
#pragma unroll
    for (int from = 0; from < Size::n; from += side) {
      float d[side / 8][4] = {};
      rows_by_rows<rows, Size::n, side, Size::p>(d, tiles.dy, row, tiles.state, from);
#pragma unroll
      for (int j = 0; j < side / 8; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float2 q = pair_of<rows>(tiles.q, mine[r], from + 8 * j + lane % 4 * 2);
          const float a = passed(entered[r], d[j][2 * r]), b = passed(entered[r], d[j][2 * r + 1]);
          through_state[r] = fmaf(a, q.x, fmaf(b, q.y, through_state[r]));
          dq[from / 8 + j][2 * r] += a, dq[from / 8 + j][2 * r + 1] += b;
        }
    }
    if (p.terms != nullptr)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float all = row_sum(sum[r]), state = row_sum(through_state[r]);
        if (lane % 4 == 0)
          p.term(row_pairs, head, s.chunk)[mine[r]] = all, p.term(row_state, head, s.chunk)[mine[r]] = state;
      }
  }
  if (p.dq != nullptr) store_keys<Size::n>(p, s, dq, row, p.dq, p.dq_parts);
}

}  // namespace

void query_gradients(const Problem& p, cudaStream_t stream) {
  with_size(p, [&]<class Size>(Size) {
    attention::launch(row_gradients<Size>, static_cast<std::int64_t>(p.chunks) * p.groups * p.parts, backward_threads,
                      backward_bytes<Size>, stream, "scan gradients of queries", shape(p), p);
  });
}

}  // namespace moeplan::cuda::ssd
