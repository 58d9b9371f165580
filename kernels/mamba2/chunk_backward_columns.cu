/// \file
/// dk and dv of a chunk and a group's heads, and the sums over columns: 8 warps of 16 keys, each the owner of its keys'
/// sums. Operations a token and head: 4 n p (both products with the state's gradient) + 2 128 (2 n + 2 p), half of the
/// latter masked.

#include "kernels/attention/launch.cuh"
#include "kernels/mamba2/chunk_backward.cuh"

namespace moeplan::cuda::ssd {
namespace {

template <class Size>
__global__ void __launch_bounds__(backward_threads, 1) column_gradients(const Problem p) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ Gate gate;
  constexpr int n = Size::stream, side = n;
  const Share s = share_of(p);
  const Tiles<Size> tiles = Tiles<Size>::in(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * 16;
  const int mine[2] = {row + lane / 4, row + lane / 4 + 8};
  const i64 token = static_cast<i64>(s.chunk) * rows;
  tiles.load_keys(p, s);
  __shared__ bool none[rows];
  float dk[Size::n / 8][4] = {};
#pragma unroll 1
  for (int head = s.first; head < s.end; ++head) {
    tiles.load_head(p, s, head, p.d_states, gate);
    tiles.take_out_keys(tiles.q, head == s.first, gate, none);
    tiles.take_out_head(gate);
    float leaves[2], step[2], through_state[2] = {}, sum[2] = {}, diagonal[2] = {}, skipped_sum[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) step[r] = gate.step[mine[r]], leaves[r] = gate.leaves(mine[r]) * step[r];
    float dv[Size::p / 8][4] = {};
    rows_by_columns<rows, Size::n, Size::p>(dv, tiles.k, row, tiles.state);
#pragma unroll
    for (int j = 0; j < Size::p / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) dv[j][e] = passed(leaves[e / 2], dv[j][e]);
#pragma unroll
    for (int from = 0; from < Size::n; from += side) {
      float d[side / 8][4] = {};
      rows_by_rows<rows, Size::n, side, Size::p>(d, tiles.v, row, tiles.state, from);
#pragma unroll
      for (int j = 0; j < side / 8; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float2 k = pair_of<rows>(tiles.k, mine[r], from + 8 * j + lane % 4 * 2);
          through_state[r] = fmaf(d[j][2 * r], k.x, fmaf(d[j][2 * r + 1], k.y, through_state[r]));
          dk[from / 8 + j][2 * r] += passed(leaves[r], d[j][2 * r]);
          dk[from / 8 + j][2 * r + 1] += passed(leaves[r], d[j][2 * r + 1]);
        }
    }
#pragma unroll 1
    for (int from = row / n * n; from < rows; from += n) {
      float z[n / 8][4] = {}, d[n / 8][4] = {};
      rows_by_rows<rows, rows, n, Size::n>(z, tiles.k, row, tiles.q, from);
      rows_by_rows<rows, rows, n, Size::p>(d, tiles.v, row, tiles.dy, from);
#pragma unroll
      for (int j = 0; j < n / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int query = from + 8 * j + lane % 4 * 2 + e % 2;
          const float between = gate.between(query, mine[e / 2]), pair = passed(between, d[j][e]);
          if (query == mine[e / 2])
            skipped_sum[e / 2] = d[j][e], diagonal[e / 2] = pair * z[j][e];
          else
            sum[e / 2] = fmaf(pair, where(pair, z[j][e]), sum[e / 2]);
          z[j][e] = passed(between * step[e / 2], z[j][e]), d[j][e] = pair * step[e / 2];
        }
      std::uint32_t left[n / 16][4];
      attention::as_left<n>(z, left);
      fragment_by_columns<rows, n, Size::p>(dv, left, tiles.dy, from);
      attention::as_left<n>(d, left);
      fragment_by_columns<rows, n, Size::n>(dk, left, tiles.q, from);
    }
    if (p.terms != nullptr)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float all = row_sum(sum[r]), one = row_sum(diagonal[r]), state = row_sum(through_state[r]),
                    plain = row_sum(skipped_sum[r]);
        if (lane % 4 != 0) continue;
        p.term(pairs, head, s.chunk)[mine[r]] = all, p.term(own, head, s.chunk)[mine[r]] = one;
        p.term(key_state, head, s.chunk)[mine[r]] = state, p.term(skipped, head, s.chunk)[mine[r]] = plain;
      }
    if (p.dv == nullptr) continue;
    const float skip = p.skip != nullptr ? p.skip[head] : 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (token + mine[r] >= p.tokens) continue;
      bf16* to = p.dv + ((token + mine[r]) * p.heads + head) * p.p;
#pragma unroll
      for (int j = 0; j < Size::p / 8; ++j) {
        const int column = 8 * j + lane % 4 * 2;
        const float2 dy = pair_of<rows>(tiles.dy, mine[r], column);
        store_pair(to, column, p.p, fmaf(skip, dy.x, dv[j][2 * r]), fmaf(skip, dy.y, dv[j][2 * r + 1]), p.vectors);
      }
    }
  }
  if (p.dk != nullptr) store_keys<Size::n>(p, s, dk, row, p.dk, p.dk_parts);
}

}  // namespace

void key_gradients(const Problem& p, cudaStream_t stream) {
  with_size(p, [&]<class Size>(Size) {
    attention::launch(column_gradients<Size>, static_cast<std::int64_t>(p.chunks) * p.groups * p.parts,
                      backward_threads, backward_bytes<Size>, stream, "scan gradients of keys and values", shape(p), p);
  });
}

}  // namespace moeplan::cuda::ssd
