/// \file
/// Preparation: one block of 256 threads per (chunk, head) writes the record of layout.cuh.
///
/// Per element about four exponentials and sixty other operations, which dominate; the matrix work (L, P: ten 16 x 16
/// blocks each; W, U: 64 x 64 lower triangle times 64 x D) is mma.sync on fragments from swizzled shared memory.
/// L is inverted in fp32 on its four diagonal 16 x 16 blocks and completed by tf32 products. beta multiplies the
/// columns of T, so that V enters the product as loaded.
#include "kernels/kda/inverse.cuh"
#include "kernels/kda/launch.hpp"
#include "kernels/kda/rows.cuh"

namespace moeplan::kernels::kda {
namespace {

constexpr int threads = 256;

template <int D>
struct Shared {
  static constexpr int tile = Record<D>::tile;
  static constexpr int qa = 0, ka = tile, kb = 2 * tile, k_up = 3 * tile, v = 4 * tile;
  static constexpr int l = 5 * tile, totals = l + 64 * l_stride * 4, beta = totals + 8 * D * 4, table = beta + 256;
  static constexpr int bytes = table + 6 * D * 2;
  // Once L and P are in registers the tiles they came from are free: P and T over qa (and on into ka when D is 64),
  // W^T over kb.
  static constexpr int p = 0, t = panel_bytes, w = kb;
};

/// One 16 x 16 block of rows `a` times rows `b`, summed over D channels; rows scaled per channel by `scale` (bf16
/// pairs) where it is given.
template <int D>
__device__ __forceinline__ void block_product(float (&c)[2][4], std::uint32_t a, int block_a, std::uint32_t b,
                                              int block_b, const std::uint32_t* scale) {
  const int lane = threadIdx.x & 31, m = lane >> 3, r = lane & 7;
  const std::uint32_t a0 = a + image_offset(16 * block_a + (m & 1) * 8 + r, (m >> 1) * 8);
  const std::uint32_t b0 = b + image_offset(16 * block_b + (m >> 1) * 8 + r, (m & 1) * 8);
#pragma unroll
  for (int s = 0; s < D / 16; ++s) {
    std::uint32_t x[4], y[4];
    ptx::load_matrix_x4(x, along_channels(a0, s));
    ptx::load_matrix_x4(y, along_channels(b0, s));
    if (scale != nullptr) {
      const std::uint32_t near = scale[8 * s + (lane & 3)], far = scale[8 * s + 4 + (lane & 3)];
      x[0] = multiply_bf16(x[0], near), x[1] = multiply_bf16(x[1], near);
      x[2] = multiply_bf16(x[2], far), x[3] = multiply_bf16(x[3], far);
    }
    const std::uint32_t y0[2] = {y[0], y[1]}, y1[2] = {y[2], y[3]};
    ptx::mma_bf16(c[0], x, y0);
    ptx::mma_bf16(c[1], x, y1);
  }
}

/// L and P pair by pair with exact exponentials: for gates past the factored form. `sum` is G from the chunk's start.
template <int D>
__device__ void pairs_one_by_one(const char* shared, const float* sum, const float* beta, float* l, char* p) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int i = warp; i < 64; i += 8)
    for (int j = 0; j <= i; ++j) {
      float kk = 0, qk = 0;
      for (int c = lane; c < D; c += 32) {
        const auto value = [&](int base, int row) {
          return __uint_as_float(std::uint32_t(*reinterpret_cast<const Bf16*>(shared + base + image_offset(row, c)))
                                 << 16);
        };
        const float e = exp2_fast(sum[i * D + c] - sum[j * D + c]) * value(Shared<D>::ka, j);
        kk += value(Shared<D>::ka, i) * e;
        qk += value(Shared<D>::qa, i) * e;
      }
      for (int x = 16; x > 0; x >>= 1) {
        kk += __shfl_xor_sync(0xffffffffu, kk, x);
        qk += __shfl_xor_sync(0xffffffffu, qk, x);
      }
      if (lane == 0) {
        if (j < i) l[i * l_stride + j] = beta[i] * kk;
        *reinterpret_cast<std::uint16_t*>(p + image_offset(i, j)) =
            static_cast<std::uint16_t>(ptx::pack_bf16(qk, 0.0f) & 0xffff);
      }
    }
}

template <int D>
__device__ __forceinline__ void load_v(const Launch& launch, const Chunk& chunk, int head, std::uint32_t shared) {
  for (int index = threadIdx.x; index < 64 * D / 8; index += threads) {
    const int row = index / (D / 8), c = 8 * (index % (D / 8));
    const bool valid = row < chunk.rows;
    const std::int64_t token = chunk.begin + (valid ? row : 0);
    ptx::copy_16(shared + image_offset(row, c), launch.v + (token * launch.heads + head) * D + c, valid);
  }
  ptx::copy_commit();
}

template <int D, bool keep_t>
__global__ void __launch_bounds__(threads, 2) prepare(const Launch launch) {
  extern __shared__ __align__(1024) char shared[];
  using S = Shared<D>;
  using R = Record<D>;
  using ChunkRows = Rows<D>;
  constexpr int pairs = ChunkRows::pairs, channels = ChunkRows::channels;
  const int index = blockIdx.x / launch.group_heads, group_head = blockIdx.x % launch.group_heads;
  const Chunk chunk = launch.chunks[index];
  if (chunk.rows == 0) return;
  const int head = launch.first_head + group_head, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  char* record = launch.records + record_index(launch, index, group_head) * launch.record_bytes;
  const std::uint32_t base = ptx::shared_address(shared);
  auto* l = reinterpret_cast<float*>(shared + S::l);
  auto* totals = reinterpret_cast<float*>(shared + S::totals);
  auto* beta = reinterpret_cast<float*>(shared + S::beta);
  auto* table = reinterpret_cast<std::uint32_t*>(shared + S::table);

  ChunkRows rows;
  float last[channels];
  bool one_by_one;
  {
    std::uint32_t z[8][pairs];
    rows.load(launch, chunk, head, z);
  }
  if (threadIdx.x < 64)
    beta[threadIdx.x] =
        threadIdx.x < chunk.rows ? launch.beta[(chunk.begin + threadIdx.x) * launch.heads + head] : 0.0f;
  one_by_one = __syncthreads_or(rows.publish(totals));
  if (!one_by_one) load_v<D>(launch, chunk, head, base + S::v);
  {
    float start[channels], end[channels], middle[channels];
    ChunkRows::prefix(totals, start, end);
    float from_middle[channels], to_end[channels];
#pragma unroll
    for (int c = 0; c < channels; ++c) {
      last[c] = rows.g[7][c];
      middle[c] = (warp & 1) ? start[c] : start[c] + last[c];
      from_middle[c] = exp2_fast(middle[c]);
      to_end[c] = exp2_fast(end[c] - middle[c]);
    }
    if (warp == 0)
#pragma unroll
      for (int c = 0; c < channels; ++c)
        reinterpret_cast<float*>(record + R::gamma)[ChunkRows::channel() + c] = exp2_fast(end[c]);
    const auto write_rows = [&](auto mode) {
      constexpr bool exact = decltype(mode)::value;  // past the factored form: plain k and q, and G itself
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float nq = rows.q_norm(i) * launch.scale, nk = rows.k_norm(i);
        std::uint32_t qa[pairs], ka[pairs], kb[pairs], k_up[pairs], q_up[pairs], k_end[pairs];
        float sums[channels];
#pragma unroll
        for (int p = 0; p < pairs; ++p) {
          const float2 q = unpack_bf16(rows.q[i][p]), k = unpack_bf16(rows.k[i][p]);
          const float qx[2] = {q.x * nq, q.y * nq}, kx[2] = {k.x * nk, k.y * nk};
          float a[2], b[2], up[2], down[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int c = 2 * p + e;
            sums[c] = start[c] + rows.g[i][c];
            if constexpr (!exact) {
              const float relative = (warp & 1) ? rows.g[i][c] : rows.g[i][c] - last[c];
              a[e] = exp2_fast(relative), b[e] = exp2_fast(-relative);
              up[e] = a[e] * from_middle[c], down[e] = b[e] * to_end[c];
            } else {
              a[e] = b[e] = 1.0f;
              up[e] = exp2_fast(sums[c]), down[e] = exp2_fast(end[c] - sums[c]);
            }
          }
          qa[p] = ptx::pack_bf16(qx[0] * a[0], qx[1] * a[1]);
          ka[p] = ptx::pack_bf16(kx[0] * a[0], kx[1] * a[1]);
          kb[p] = ptx::pack_bf16(kx[0] * b[0], kx[1] * b[1]);
          q_up[p] = ptx::pack_bf16(qx[0] * up[0], qx[1] * up[1]);
          k_up[p] = ptx::pack_bf16(kx[0] * up[0], kx[1] * up[1]);
          k_end[p] = ptx::pack_bf16(kx[0] * down[0], kx[1] * down[1]);
        }
        const std::uint32_t at = image_offset(8 * warp + i, ChunkRows::channel());
        ChunkRows::store_row(shared + S::qa + at, qa);
        ChunkRows::store_row(shared + S::ka + at, ka);
        if constexpr (!exact) {
          ChunkRows::store_row(shared + S::kb + at, kb);
          ChunkRows::store_row(shared + S::k_up + at, k_up);
        } else {
          auto* sum = reinterpret_cast<float*>(shared + S::kb) + (8 * warp + i) * D + ChunkRows::channel();
#pragma unroll
          for (int c = 0; c < channels; ++c) sum[c] = sums[c];
        }
        ChunkRows::store_row(record + R::q_up + at, q_up);
        ChunkRows::store_row(record + R::k_end + at, k_end);
      }
    };
    if (one_by_one)
      write_rows(std::true_type{});
    else
      write_rows(std::false_type{});
  }
  block_decays<D>(totals, table, threadIdx.x, threads);
  __syncthreads();

  if (one_by_one) {
    // G lies over kb and k_up; P goes to v, which is loaded after it has moved on.
    char* p = shared + S::v;
    for (int at = threadIdx.x * 16; at < panel_bytes; at += threads * 16)
      *reinterpret_cast<uint4*>(p + at) = make_uint4(0, 0, 0, 0);
    __syncthreads();
    const auto* sum = reinterpret_cast<const float*>(shared + S::kb);
    pairs_one_by_one<D>(shared, sum, beta, l, p);
    __syncthreads();
    std::uint32_t k_up[8][pairs];
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int x = 0; x < pairs; ++x) {
        const int c = ChunkRows::channel() + 2 * x, row = 8 * warp + i;
        const float2 k = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(shared + S::ka + image_offset(row, c)));
        k_up[i][x] = ptx::pack_bf16(k.x * exp2_fast(sum[row * D + c]), k.y * exp2_fast(sum[row * D + c + 1]));
      }
    uint4 moved[2];
    for (int n = 0; n < 2; ++n) moved[n] = *reinterpret_cast<uint4*>(p + (threadIdx.x + n * threads) * 16);
    __syncthreads();
    for (int n = 0; n < 2; ++n) *reinterpret_cast<uint4*>(shared + S::p + (threadIdx.x + n * threads) * 16) = moved[n];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      ChunkRows::store_row(shared + S::k_up + image_offset(8 * warp + i, ChunkRows::channel()), k_up[i]);
    load_v<D>(launch, chunk, head, base + S::v);
  } else {
    // Jobs 0 to 9 are the blocks of P, 10 to 19 those of L; the results wait in registers until all have read.
    float c[3][2][4] = {};
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      const int job = warp + 8 * n, block = job % 10;
      if (job < 20) {
        const int i = block < 1 ? 0 : block < 3 ? 1 : block < 6 ? 2 : 3, j = block - i * (i + 1) / 2;
        block_product<D>(c[n], base + (job < 10 ? S::qa : S::ka), i, base + S::kb, j,
                         i == j ? nullptr : table + block_pair(i, j) * (D / 2));
      }
    }
    __syncthreads();
    const int row = lane >> 2, column = 2 * (lane & 3);
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      const int job = warp + 8 * n, block = job % 10;
      if (job >= 20) continue;
      const int i = block < 1 ? 0 : block < 3 ? 1 : block < 6 ? 2 : 3, j = block - i * (i + 1) / 2;
#pragma unroll
      for (int x = 0; x < 2; ++x)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int r = 16 * i + row + 8 * half, s = 16 * j + 8 * x + column;
          const float low = c[n][x][2 * half], high = c[n][x][2 * half + 1];
          if (job < 10) {
            *reinterpret_cast<std::uint32_t*>(shared + S::p + image_offset(r, s)) =
                ptx::pack_bf16(s <= r ? low : 0.0f, s + 1 <= r ? high : 0.0f);
          } else {
            l[r * l_stride + s] = s < r ? beta[r] * low : 0.0f;
            l[r * l_stride + s + 1] = s + 1 < r ? beta[r] * high : 0.0f;
          }
        }
    }
    if (threadIdx.x < 192) {  // the blocks of P above the diagonal: 6 blocks of 16 rows and 2 chunks of 16 bytes
      const int block = threadIdx.x / 32, r = (threadIdx.x % 32) / 2, x = threadIdx.x % 2;
      const int i = block < 3 ? 0 : block < 5 ? 1 : 2, j = block < 3 ? block + 1 : block < 5 ? block - 1 : 3;
      *reinterpret_cast<uint4*>(shared + S::p + image_offset(16 * i + r, 16 * j + 8 * x)) = make_uint4(0, 0, 0, 0);
    }
  }
  ptx::fence_async_shared();
  __syncthreads();
  if (threadIdx.x == 128) {
    ptx::bulk_store(record + R::p, shared + S::p, panel_bytes);
    ptx::bulk_commit();
  }
  __syncwarp();
  invert_64(l);
  ptx::copy_wait<0>();
  __syncthreads();

  for (int task = threadIdx.x; task < 512; task += threads) {  // T as bf16, its columns times beta
    const int i = task >> 3, j = 8 * (task & 7);
    float t[8];
#pragma unroll
    for (int x = 0; x < 8; ++x) t[x] = j + x <= i ? l[i * l_stride + j + x] : 0.0f;
    const std::uint32_t at = image_offset(i, j);
    if constexpr (keep_t)
      *reinterpret_cast<uint4*>(record + R::t + at) =
          make_uint4(ptx::pack_bf16(t[0], t[1]), ptx::pack_bf16(t[2], t[3]), ptx::pack_bf16(t[4], t[5]),
                     ptx::pack_bf16(t[6], t[7]));
#pragma unroll
    for (int x = 0; x < 8; ++x) t[x] *= beta[j + x];
    *reinterpret_cast<uint4*>(shared + S::t + at) = make_uint4(ptx::pack_bf16(t[0], t[1]), ptx::pack_bf16(t[2], t[3]),
                                                               ptx::pack_bf16(t[4], t[5]), ptx::pack_bf16(t[6], t[7]));
  }
  __syncthreads();

  // Blocks of 16 channels: U^T = V^T T^T into accumulator order, -W^T = -(k exp G)^T T^T as an image.
  for (int job = warp; job < 2 * D / 16; job += 8) {
    const bool is_u = job < D / 16;
    const int block = job % (D / 16), m = lane >> 3, r = lane & 7;
    const std::uint32_t t0 = base + S::t + image_offset((m >> 1) * 8 + r, (m & 1) * 8);
    float c[8][4] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t a[4];
      ptx::load_matrix_x4_transposed(
          a, base + (is_u ? S::v : S::k_up) + image_offset(16 * s + (m >> 1) * 8 + r, 16 * block + (m & 1) * 8));
#pragma unroll
      for (int i = s; i < 4; ++i) {
        std::uint32_t b[4];
        ptx::load_matrix_x4(b, along_channels(t0, s) + i * 2048);
        const std::uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
        ptx::mma_bf16(c[2 * i], a, b0);
        ptx::mma_bf16(c[2 * i + 1], a, b1);
      }
    }
    if (is_u) {
      char* out = record + R::u + (block >> 2) * panel_bytes + (32 * (block & 3) + lane) * 16;
#pragma unroll
      for (int x = 0; x < 4; ++x)
        *reinterpret_cast<uint4*>(out + x * 2048) = make_uint4(
            ptx::pack_bf16(c[2 * x][0], c[2 * x][1]), ptx::pack_bf16(c[2 * x][2], c[2 * x][3]),
            ptx::pack_bf16(c[2 * x + 1][0], c[2 * x + 1][1]), ptx::pack_bf16(c[2 * x + 1][2], c[2 * x + 1][3]));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t packed[4] = {
            ptx::pack_bf16(-c[2 * i][0], -c[2 * i][1]), ptx::pack_bf16(-c[2 * i][2], -c[2 * i][3]),
            ptx::pack_bf16(-c[2 * i + 1][0], -c[2 * i + 1][1]), ptx::pack_bf16(-c[2 * i + 1][2], -c[2 * i + 1][3])};
        ptx::store_matrix_x4(base + S::w + image_offset(16 * block + (m & 1) * 8 + r, 16 * i + (m >> 1) * 8), packed);
      }
      ptx::fence_async_shared();
      __syncwarp();
      if (lane == 0) {
        ptx::bulk_store(record + R::w + block * 2048, shared + S::w + block * 2048, 2048);
        ptx::bulk_commit();
      }
    }
  }
  ptx::bulk_wait_read<0>();
}

template <int D, bool keep_t>
void launch_prepare(const Launch& launch, cudaStream_t stream) {
  check(cudaFuncSetAttribute(prepare<D, keep_t>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shared<D>::bytes),
        "shared memory of kda prepare");
  prepare<D, keep_t>
      <<<static_cast<unsigned>(launch.max_chunks) * launch.group_heads, threads, Shared<D>::bytes, stream>>>(launch);
  check_launch("kda prepare", describe(launch));
}

}  // namespace

void prepare(const Launch& launch, int head_dim, bool keep_t, cudaStream_t stream) {
  if (head_dim == 128)
    keep_t ? launch_prepare<128, true>(launch, stream) : launch_prepare<128, false>(launch, stream);
  else
    keep_t ? launch_prepare<64, true>(launch, stream) : launch_prepare<64, false>(launch, stream);
}

}  // namespace moeplan::kernels::kda
