/// \file
/// Chunk-parallel backward: one block of four warpgroups per (chunk, head). The mathematics: backward_tiles.cuh.
#include "kernels/kda/backward_tiles.cuh"
#include "kernels/kda/launch.hpp"

namespace moeplan::kernels::kda {
namespace {

template <int D>
__global__ void __launch_bounds__(backward_threads, 1) backward(const Launch launch) {
  extern __shared__ __align__(1024) char shared[];
  using S = BackwardShared<D>;
  using R = Record<D>;
  using ChunkRows = Rows<D, warp_rows>;
  constexpr int pairs = ChunkRows::pairs, channels = ChunkRows::channels;
  const int index = blockIdx.x / launch.group_heads, group_head = blockIdx.x % launch.group_heads;
  const Chunk chunk = launch.chunks[index];
  if (chunk.rows == 0) return;
  const int head = launch.first_head + group_head, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int group = __shfl_sync(0xffffffffu, warp >> 2, 0), block = warp & 3, m = lane >> 3, r = lane & 7;
  const std::int64_t at_record = record_index(launch, index, group_head);
  const char* record = launch.records + at_record * launch.record_bytes;
  const std::uint32_t base = ptx::shared_address(shared);
  const auto floats = [&](int offset) { return reinterpret_cast<float*>(shared + offset); };
  auto* beta = floats(S::beta);
  auto* barrier = reinterpret_cast<ptx::Barrier*>(shared + S::barrier);
  const std::int64_t stride = static_cast<std::int64_t>(launch.heads) * D;

  if (threadIdx.x == 0) {
    ptx::barrier_init(barrier, 1);
    ptx::fence_barrier_init();
    ptx::fence_async_shared();
    ptx::barrier_arrive_expect(barrier, 2 * R::tile + 2 * S::state + panel_bytes);
    ptx::bulk_load(shared + S::z, launch.d_n + at_record * R::tile, R::tile, barrier);
    ptx::bulk_load(shared + S::t, record + R::t, panel_bytes, barrier);
    ptx::bulk_load(shared + S::s, launch.states + at_record * S::state, S::state, barrier);
    ptx::bulk_load(shared + S::n, record + R::u, R::tile, barrier);
    ptx::bulk_load(shared + S::d_s, launch.d_states + at_record * S::state, S::state, barrier);
  }
  for (int task = threadIdx.x; task < 64 * D / 8; task += backward_threads) {
    const int row = task / (D / 8), c = 8 * (task % (D / 8));
    const bool valid = row < chunk.rows;
    ptx::copy_16(base + S::d_out + image_offset(row, c),
                 launch.d_out + (chunk.begin + (valid ? row : 0)) * stride + head * D + c, valid);
  }
  ptx::copy_commit();

  ChunkRows rows;
  float end[channels], shift[channels];
  bool one_by_one;
  {
    std::uint32_t z[warp_rows][pairs];
    rows.load(launch, chunk, head, z);
  }
  if (threadIdx.x < 64)
    beta[threadIdx.x] =
        threadIdx.x < chunk.rows ? launch.beta[(chunk.begin + threadIdx.x) * launch.heads + head] : 0.0f;
  one_by_one = __syncthreads_or(rows.publish(floats(S::totals)));
  if (threadIdx.x < 32)
    reinterpret_cast<std::uint32_t*>(shared + S::beta_pairs)[threadIdx.x] =
        ptx::pack_bf16(beta_rest(beta[2 * threadIdx.x]), beta_rest(beta[2 * threadIdx.x + 1]));
  {
    float start[channels];
    ChunkRows::prefix(floats(S::totals), start, end);
    ChunkRows::from_middle(floats(S::totals), shift);
#pragma unroll
    for (int i = 0; i < warp_rows; ++i) {
      const float nq = rows.q_norm(i) * launch.scale, nk = rows.k_norm(i);
      std::uint32_t qa[pairs], ka[pairs], kb[pairs];
#pragma unroll
      for (int p = 0; p < pairs; ++p) {
        const float2 q = unpack_bf16(rows.q[i][p]), k = unpack_bf16(rows.k[i][p]);
        float a[2], b[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int c = 2 * p + e;
          const float relative = rows.g[i][c] + shift[c];
          a[e] = one_by_one ? 1.0f : exp2_fast(relative), b[e] = one_by_one ? 1.0f : exp2_fast(-relative);
          if (one_by_one)
            floats(S::sums)[(warp_rows * warp + i) * D + ChunkRows::channel() + c] = start[c] + rows.g[i][c];
        }
        qa[p] = ptx::pack_bf16(q.x * nq * a[0], q.y * nq * a[1]);
        ka[p] = ptx::pack_bf16(k.x * nk * a[0], k.y * nk * a[1]);
        kb[p] = ptx::pack_bf16(k.x * nk * b[0], k.y * nk * b[1]);
      }
      const std::uint32_t at = image_offset(warp_rows * warp + i, ChunkRows::channel());
      ChunkRows::store_row(shared + S::qa + at, qa);
      ChunkRows::store_row(shared + S::ka + at, ka);
      if (!one_by_one) ChunkRows::store_row(shared + S::kb + at, kb);
    }
  }
  for (int c = threadIdx.x; c < D; c += backward_threads) {  // steps between the middles; from each middle to the end
    float total[8], to_end = 0;                              // of 8 rows each
#pragma unroll
    for (int w = 0; w < 8; ++w) total[w] = floats(S::totals)[2 * w * D + c] + floats(S::totals)[(2 * w + 1) * D + c];
    floats(S::steps)[c] = exp2_fast(total[0]);
    floats(S::steps)[4 * D + c] = exp2_fast(total[7]);
    to_end = total[7];
    floats(S::to_end)[3 * D + c] = exp2_fast(to_end);
#pragma unroll
    for (int i = 3; i >= 1; --i) {
      const float step = total[2 * i - 1] + total[2 * i];
      floats(S::steps)[i * D + c] = exp2_fast(step);
      to_end += step;
      floats(S::to_end)[(i - 1) * D + c] = exp2_fast(to_end);
    }
  }
  ptx::copy_wait<0>();
  ptx::fence_async_shared();
  __syncthreads();
  ptx::barrier_wait(barrier, 0);

  const bool has_half = group < D / 64;  // this warpgroup owns channels (or values) 64 group to + 63
  const bool is_k = group >= 2;          // its side, of which it owns the channels from `side_channel` on
  constexpr int side_width = D / 2;
  const int side_channel = (group & 1) * side_width;
  float half[32];
  if (has_half) {
    ptx::wgmma_begin();
#pragma unroll
    for (int x = 0; x < 4; ++x)
      ptx::Wgmma<64>::ss<ptx::Major::mn, ptx::Major::mn>(
          half, ptx::wgmma_descriptor(base + S::t + 2048 * x),
          ptx::wgmma_descriptor(base + S::z + group * panel_bytes + 2048 * x), x > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(half);
  }
  __syncthreads();
  if (has_half) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const std::uint32_t packed[4] = {
          ptx::pack_bf16(half[8 * x], half[8 * x + 1]), ptx::pack_bf16(half[8 * x + 2], half[8 * x + 3]),
          ptx::pack_bf16(half[8 * x + 4], half[8 * x + 5]), ptx::pack_bf16(half[8 * x + 6], half[8 * x + 7])};
      ptx::store_matrix_x4(base + S::z + image_offset(16 * block + (m & 1) * 8 + r, 64 * group + 16 * x + (m >> 1) * 8),
                           packed);
    }
    ptx::fence_async_shared();
  }
  __syncthreads();

  float side[D / 4], square[16];
  {
    const std::uint32_t left = base + (is_k ? S::z : S::d_out);
    const std::uint32_t s0 = base + S::s + (side_channel >> 6) * (D * 128) + (side_channel & 63) * 2;
    ptx::wgmma_begin();
#pragma unroll
    for (int x = 0; x < D / 16; ++x)
      ptx::Wgmma<32>::ss(
          square, ptx::wgmma_descriptor(left + (x >> 2) * panel_bytes + (x & 3) * 32),
          ptx::wgmma_descriptor(base + S::n + (group & 1) * 4096 + (x >> 2) * panel_bytes + (x & 3) * 32), x > 0);
    ptx::wgmma_commit();
#pragma unroll
    for (int x = 0; x < D / 16; ++x)
      ptx::Wgmma<side_width>::template ss<ptx::Major::k, ptx::Major::mn>(
          side, ptx::wgmma_descriptor(left + (x >> 2) * panel_bytes + (x & 3) * 32),
          ptx::wgmma_descriptor(s0 + 2048 * x), x > 0);
    if (has_half) {
#pragma unroll
      for (int x = 0; x < D / 16; ++x)
        ptx::Wgmma<64>::ss<ptx::Major::k, ptx::Major::mn>(
            half, ptx::wgmma_descriptor(base + S::n + (x >> 2) * panel_bytes + (x & 3) * 32),
            ptx::wgmma_descriptor(base + S::d_s + group * (D * 128) + 2048 * x), x > 0);
    }
    ptx::wgmma_commit();
  }
  {  // sum over values of dS_C S_0, by channel, in row ranges
    const int c = 2 * (threadIdx.x % (D / 2)), range = threadIdx.x / (D / 2);
    float low = 0, high = 0;
#pragma unroll 4
    for (int v = range * (D / S::ranges); v < (range + 1) * (D / S::ranges); ++v) {
      const std::uint32_t at = (c >> 6) * (D * 128) + v * 128 + ((((c & 63) >> 3) ^ (v & 7)) << 4) + (c & 7) * 2;
      const float2 x = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(shared + S::s + at));
      const float2 y = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(shared + S::d_s + at));
      low += x.x * y.x, high += x.y * y.y;
    }
    floats(S::ends)[range * D + c] = low;
    floats(S::ends)[range * D + c + 1] = high;
  }
  ptx::wgmma_wait<1>();
  ptx::wgmma_touch(square);
  {
    const int sign = is_k ? 1 : 0, image = is_k ? S::dl : S::dp, column = 32 * (group & 1) + 2 * (lane & 3);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const int row = 16 * block + (lane >> 2) + 8 * x, col = 8 * j + column;
        float low = square[4 * j + 2 * x], high = square[4 * j + 2 * x + 1];
        const float factor = sign ? -beta_folded(beta[row]) : 1.0f;
        low = col + sign <= row ? factor * low : 0.0f;
        high = col + 1 + sign <= row ? factor * high : 0.0f;
        *reinterpret_cast<std::uint32_t*>(shared + image + image_offset(row, col)) = ptx::pack_bf16(low, high);
      }
  }
  ptx::wgmma_wait<0>();
  ptx::wgmma_touch(side);
  ptx::wgmma_touch(half);
  if (is_k) {
    const int row = 16 * block + (lane >> 2);
    const float low = -beta_folded(beta[row]), high = -beta_folded(beta[row + 8]);
#pragma unroll
    for (int x = 0; x < D / 4; ++x) side[x] *= (x & 2) ? high : low;
  }
  if (has_half && !one_by_one) {  // sum over tokens of k exp(G_C - G) times its gradient, by channel
    const float* to_end = floats(S::to_end) + block * D + 64 * group;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = 8 * j + 2 * (lane & 3), row = 16 * block + (lane >> 2);
      const float2 k0 =
          unpack_bf16(*reinterpret_cast<const std::uint32_t*>(shared + S::kb + image_offset(row, 64 * group + column)));
      const float2 k1 = unpack_bf16(
          *reinterpret_cast<const std::uint32_t*>(shared + S::kb + image_offset(row + 8, 64 * group + column)));
      float low = (k0.x * half[4 * j] + k1.x * half[4 * j + 2]) * to_end[column];
      float high = (k0.y * half[4 * j + 1] + k1.y * half[4 * j + 3]) * to_end[column + 1];
#pragma unroll
      for (int x = 4; x < 32; x *= 2) {
        low += __shfl_xor_sync(0xffffffffu, low, x);
        high += __shfl_xor_sync(0xffffffffu, high, x);
      }
      if (lane < 4) {
        floats(S::ends)[(S::ranges + block) * D + 64 * group + column] = low;
        floats(S::ends)[(S::ranges + block) * D + 64 * group + column + 1] = high;
      }
    }
  }
  __syncthreads();  // dP and dL are complete; s, d_s, d_out and n are free

  if (!one_by_one) {
    const std::uint32_t own = base + (is_k ? S::dl : S::dp);
    for (int j = 0; j <= block; ++j) {
      scale_columns<D>(side, floats(S::steps) + j * D + side_channel);
      std::uint32_t a[4];
      ptx::load_matrix_x4(a, own + image_offset(16 * block + (m & 1) * 8 + r, 16 * j + (m >> 1) * 8));
      multiply_rows(side, a, base + S::kb, 16 * j, side_channel);
    }
    if (has_half)
      for (int i = 3; i >= block; --i) {
        scale_columns<D>(half, floats(S::steps) + (i + 1) * D + 64 * group);
        const std::uint32_t at = image_offset(16 * i + (m >> 1) * 8 + r, 16 * block + (m & 1) * 8);
        std::uint32_t a[4];
        ptx::load_matrix_x4_transposed(a, base + S::dp + at);
        multiply_rows(half, a, base + S::qa, 16 * i, 64 * group);
        ptx::load_matrix_x4_transposed(a, base + S::dl + at);
        const auto* b = reinterpret_cast<const std::uint32_t*>(shared + S::beta_pairs) + 8 * i + (lane & 3);
        a[0] = multiply_bf16(a[0], b[0]), a[1] = multiply_bf16(a[1], b[0]);
        a[2] = multiply_bf16(a[2], b[4]), a[3] = multiply_bf16(a[3], b[4]);
        multiply_rows(half, a, base + S::ka, 16 * i, 64 * group);
      }
  }
  store_tile<D>(shared + (is_k ? S::side_k : S::side_q), side, side_channel);
  if (has_half) store_tile<D>(shared + S::column, half, 64 * group);
  __syncthreads();

  float end_sum[channels];  // the gradient of G_C beyond its own row
  {
    float kept[channels] = {};
    if (one_by_one) {
      pairs_one_by_one<D>(shared, beta, end, kept);
#pragma unroll
      for (int c = 0; c < channels; ++c) floats(S::totals)[warp * D + ChunkRows::channel() + c] = kept[c];
      __syncthreads();
    }
#pragma unroll
    for (int c = 0; c < channels; ++c) {
      const int channel = ChunkRows::channel() + c;
      float states = 0, keys = 0;
      for (int x = 0; x < S::ranges; ++x) states += floats(S::ends)[x * D + channel];
      if (one_by_one)
        for (int x = 0; x < ChunkRows::warps; ++x) keys += floats(S::totals)[x * D + channel];
      else
        for (int x = S::ranges; x < S::ranges + 4; ++x) keys += floats(S::ends)[x * D + channel];
      end_sum[c] = states * exp2_fast(end[c]) + keys;
    }
  }
  __syncthreads();

  // From here a warp has its rows again.
  float dq[warp_rows][channels], dk[warp_rows][channels], dg[warp_rows][channels], dots[2 * warp_rows],
      beta_dots[2 * warp_rows];
  constexpr int lane_step = 16 / warp_rows;  // reduce_rows leaves value i in lane lane_step i
#pragma unroll
  for (int i = 0; i < warp_rows; ++i) {
    const int row = warp_rows * warp + i;
    const bool valid = row < chunk.rows;
    const float nq = rows.q_norm(i), nk = rows.k_norm(i), b = beta[row], rest = beta_rest(b),
                per_folded = 1.0f / beta_folded(b);
    const std::int64_t at = (chunk.begin + row) * stride + head * D + ChunkRows::channel();
    std::uint32_t v[pairs] = {}, z[pairs], dv[pairs];
    if (valid) ChunkRows::load_row(v, launch.v + at);
    ChunkRows::load_row(z, reinterpret_cast<const Bf16*>(shared + S::z + image_offset(row, ChunkRows::channel())));
    // The gate's gradient is a sum of terms that cancel in pairs (row i, column j) where decay is strong; they do so
    // only if both sides multiply the same rounded factors, those of the tiles.
    std::uint32_t qa[pairs], ka[pairs], kb[pairs];
    const auto image_row = [&](std::uint32_t(&x)[pairs], int image) {
      ChunkRows::load_row(x, reinterpret_cast<const Bf16*>(shared + image + image_offset(row, ChunkRows::channel())));
    };
    image_row(qa, S::qa), image_row(ka, S::ka), image_row(kb, one_by_one ? S::ka : S::kb);
    float dot_q = 0, dot_k = 0, dot_b = 0;
#pragma unroll
    for (int p = 0; p < pairs; ++p) {
      const float2 qa2 = unpack_bf16(qa[p]), ka2 = unpack_bf16(ka[p]), kb2 = unpack_bf16(kb[p]);
      const float2 q2 = unpack_bf16(rows.q[i][p]), k2 = unpack_bf16(rows.k[i][p]), v2 = unpack_bf16(v[p]),
                   z2 = unpack_bf16(z[p]);
      const int at_tile = tile_offset<D>(row, ChunkRows::channel() + 2 * p);
      const float2 tq = *reinterpret_cast<const float2*>(shared + S::side_q + at_tile);
      const float2 tk = *reinterpret_cast<const float2*>(shared + S::side_k + at_tile);
      const float2 tc = *reinterpret_cast<const float2*>(shared + S::column + at_tile);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = 2 * p + e;
        const float relative = rows.g[i][c] + shift[c];
        const float fa = one_by_one ? 1.0f : exp2_fast(relative), fb = one_by_one ? 1.0f : exp2_fast(-relative);
        const float q = (e ? q2.y : q2.x) * nq, k = (e ? k2.y : k2.x) * nk;  // unit vectors
        const float sq = e ? tq.y : tq.x, sk = (e ? tk.y : tk.x) * rest, sc = e ? tc.y : tc.x;
        const float rq = fa * sq * launch.scale, rk = fa * sk, ck = fb * sc;
        dq[i][c] = rq;
        dk[i][c] = rk + ck;
        dg[i][c] = (e ? qa2.y : qa2.x) * sq + (e ? ka2.y : ka2.x) * sk - (e ? kb2.y : kb2.x) * sc;
        dot_q += q * rq;
        dot_k += k * dk[i][c];
        dot_b += k * fa * (e ? tk.y : tk.x) * per_folded + (e ? z2.y * v2.y : z2.x * v2.x);
      }
      dv[p] = ptx::pack_bf16(b * z2.x, b * z2.y);
    }
    if (valid && launch.d_v != nullptr) ChunkRows::store_row(launch.d_v + at, dv);
    dots[i] = dot_q, dots[warp_rows + i] = dot_k;
    beta_dots[i] = dot_b, beta_dots[warp_rows + i] = 0.0f;
  }
  const float dot = reduce_rows(dots), beta_dot = reduce_rows(beta_dots);
  if (launch.d_beta != nullptr && lane < 16 && lane % lane_step == 0 && warp_rows * warp + lane / lane_step < chunk.rows)
    launch.d_beta[(chunk.begin + warp_rows * warp + lane / lane_step) * launch.heads + head] = beta_dot;
#pragma unroll
  for (int i = 0; i < warp_rows; ++i) {
    const float dot_q = __shfl_sync(0xffffffffu, dot, lane_step * i),
                dot_k = __shfl_sync(0xffffffffu, dot, 16 + lane_step * i);
    const float nq = rows.q_norm(i), nk = rows.k_norm(i);
    std::uint32_t out_q[pairs], out_k[pairs];
#pragma unroll
    for (int p = 0; p < pairs; ++p) {
      const float2 q = unpack_bf16(rows.q[i][p]), k = unpack_bf16(rows.k[i][p]);
      out_q[p] = ptx::pack_bf16(nq * (dq[i][2 * p] - q.x * nq * dot_q), nq * (dq[i][2 * p + 1] - q.y * nq * dot_q));
      out_k[p] = ptx::pack_bf16(nk * (dk[i][2 * p] - k.x * nk * dot_k), nk * (dk[i][2 * p + 1] - k.y * nk * dot_k));
    }
    if (warp_rows * warp + i < chunk.rows) {
      const std::int64_t at = (chunk.begin + warp_rows * warp + i) * stride + head * D + ChunkRows::channel();
      if (launch.d_q != nullptr) ChunkRows::store_row(launch.d_q + at, out_q);
      if (launch.d_k != nullptr) ChunkRows::store_row(launch.d_k + at, out_k);
    }
  }
#pragma unroll
  for (int c = 0; c < channels; ++c) {  // sums from the chunk's end
#pragma unroll
    for (int i = warp_rows - 2; i >= 0; --i) dg[i][c] += dg[i + 1][c];
    floats(S::totals)[warp * D + ChunkRows::channel() + c] = dg[0][c];
  }
  __syncthreads();
  float by_bias[channels] = {}, by_a[channels] = {};
  const float a = gate_scale(launch.a_log[head]);
#pragma unroll
  for (int c = 0; c < channels; ++c)
#pragma unroll
    for (int w = 1; w < ChunkRows::warps; ++w)
      if (w > warp) end_sum[c] += floats(S::totals)[w * D + ChunkRows::channel() + c];
#pragma unroll
  for (int i = 0; i < warp_rows; ++i) {
    if (warp_rows * warp + i >= chunk.rows) continue;
    const std::int64_t at = (chunk.begin + warp_rows * warp + i) * stride + head * D + ChunkRows::channel();
    std::uint32_t z[pairs], out[pairs];
    ChunkRows::load_row(z, launch.gate + at);
#pragma unroll
    for (int p = 0; p < pairs; ++p) {
      const float2 z2 = unpack_bf16(z[p]);
      float dz[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = 2 * p + e;
        const float bias = launch.dt_bias != nullptr ? launch.dt_bias[head * D + ChunkRows::channel() + c] : 0.0f;
        const auto slope = gate_slope((e ? z2.y : z2.x) + bias, a, launch.lower_bound);
        const float sum = dg[i][c] + end_sum[c];
        dz[e] = sum * slope.by_z;
        by_bias[c] += dz[e];
        by_a[c] += sum * slope.by_a_log;
      }
      out[p] = ptx::pack_bf16(dz[0], dz[1]);
    }
    if (launch.d_gate != nullptr) ChunkRows::store_row(launch.d_gate + at, out);
  }
  // Parameter sums of the chunk: tiles are free now.
  __syncthreads();
#pragma unroll
  for (int c = 0; c < channels; ++c) {
    floats(0)[warp * 2 * D + ChunkRows::channel() + c] = by_bias[c];
    floats(0)[warp * 2 * D + D + ChunkRows::channel() + c] = by_a[c];
  }
  __syncthreads();
  if (threadIdx.x < 2 * D) {
    float sum = 0;
    for (int w = 0; w < ChunkRows::warps; ++w) sum += floats(0)[w * 2 * D + threadIdx.x];
    launch.parameter_partials[at_record * 2 * D + threadIdx.x] = sum;
  }
}

template <int D>
void launch_backward(const Launch& launch, cudaStream_t stream) {
  check(cudaFuncSetAttribute(backward<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, BackwardShared<D>::bytes),
        "shared memory of kda backward");
  backward<D><<<static_cast<unsigned>(launch.max_chunks) * launch.group_heads, backward_threads,
                BackwardShared<D>::bytes, stream>>>(launch);
  check_launch("kda backward", describe(launch));
}

}  // namespace

void backward_chunks(const Launch& launch, int head_dim, cudaStream_t stream) {
  head_dim == 128 ? launch_backward<128>(launch, stream) : launch_backward<64>(launch, stream);
}

}  // namespace moeplan::kernels::kda
