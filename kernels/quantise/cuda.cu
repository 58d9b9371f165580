/// Block quantisation on the GPU, as stored.cuh lays it out; rounding.hpp has what each type makes of a number. Two of the scales are
/// rounded as they are stored, which the reference leaves out: int8's and int4's to bf16 (codes are taken under the rounded scale).
/// Mapping: fp8 a block of 256 threads owns a tile of 128 x 128 in registers; mxfp4, nvfp4, int4: 2 or 4 lanes of 8 columns share a scale; int8
/// a block owns a row, up to 8192 columns of it in registers (the rest is read twice, the second time from cache). Bytes: the values once, payload and scales once.

#include "kernels/cuda_frame.hpp"
#include "kernels/quantise/op.hpp"
#include "kernels/quantise/stored.cuh"

namespace moeplan::cuda {
namespace {

constexpr int threads = 256;

template <class T>
__device__ __forceinline__ float most_of(const Pack<T, 8>& v, float most) {
  if constexpr (std::is_same_v<T, bf16>) {   // two at a time
    __nv_bfloat162 two = __float2bfloat162_rn(0.0f);
#pragma unroll
    for (const std::uint32_t& word : v.word) two = __hmax2(two, __habs2(*reinterpret_cast<const __nv_bfloat162*>(&word)));
    return fmaxf(most, fmaxf(__low2float(two), __high2float(two)));
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) most = fmaxf(most, fabsf(v[j]));
    return most;
  }
}
/// Largest value over the block, for all of its threads; to be called once.
__device__ __forceinline__ float block_max(float v) {
  __shared__ float warps[threads / 32];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < threads / 32; ++w) v = fmaxf(v, warps[w]);
  return v;
}

template <class T>
__global__ void __launch_bounds__(threads) quantise_tiles(Stored<DType::fp8> s, const T* x, std::uint8_t* y, bool wide) {
  const i64 tile_row = blockIdx.y, tile_column = blockIdx.x;
  const i64 column = tile_column * 128 + threadIdx.x % 16 * 8, first = tile_row * 128 + threadIdx.x / 16;
  Pack<T, 8> v[8];
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const i64 row = first + 16 * r;
    v[r] = row < s.rows && column < s.columns ? read_plain(x, row, column, s.columns, wide) : Pack<T, 8>::of({});
  }
  float most = 0;
#pragma unroll
  for (int r = 0; r < 8; ++r) most = most_of(v[r], most);
  const Scale scale = scale_of<DType::fp8>(block_max(most));
  if (threadIdx.x == 0) write_bits<4>(y + s.scale_at(tile_row * 128, tile_column * 128), scale.bits);
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const i64 row = first + 16 * r;
    if (row < s.rows && column < s.columns) write_codes(s, y, row, column, codes_of<DType::fp8>(v[r], scale.inverse), wide);
  }
}

/// Neighbouring threads share a scale; every row has a whole number of such groups. A thread has several packs in flight.
template <DType type, class T>
__global__ void __launch_bounds__(threads) quantise_groups(Stored<type> s, const T* x, std::uint8_t* y, RowOf packs, bool wide) {
  constexpr int lanes = Stored<type>::block / 8, unroll = 4;
  const i64 first = static_cast<i64>(blockIdx.x) * (threads * unroll) + threadIdx.x;
  i64 row[unroll], column[unroll];
  Pack<T, 8> v[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    packs(first + u * threads, row[u], column[u]);
    column[u] *= 8;
    v[u] = row[u] < s.rows && column[u] < s.columns ? read_plain(x, row[u], column[u], s.columns, wide) : Pack<T, 8>::of({});
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    float most = most_of(v[u], 0.0f);
#pragma unroll
    for (int o = lanes / 2; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
    if (row[u] >= s.rows || column[u] >= s.columns) continue;
    const Scale scale = scale_of<type>(most);
    if (threadIdx.x % lanes == 0) write_bits<Stored<type>::scale_bytes>(y + s.scale_at(row[u], column[u]), scale.bits);
    write_codes(s, y, row[u], column[u], codes_of<type>(v[u], scale.inverse), wide);
  }
}

/// A block a row, which it holds as far as it fits into `held` packs a thread; the rest is read twice.
template <class T>
__global__ void __launch_bounds__(threads) quantise_rows(Stored<DType::int8> s, const T* x, std::uint8_t* y, bool wide) {
  constexpr int held = 4, stride = threads * 8;
  const i64 row = blockIdx.x, first = threadIdx.x * 8;
  Pack<T, 8> v[held];
#pragma unroll
  for (int k = 0; k < held; ++k) v[k] = first + k * stride < s.columns ? read_plain(x, row, first + k * stride, s.columns, wide) : Pack<T, 8>::of({});
  float most = 0;
#pragma unroll
  for (int k = 0; k < held; ++k) most = most_of(v[k], most);
  for (i64 column = first + held * stride; column < s.columns; column += stride) most = most_of(read_plain(x, row, column, s.columns, wide), most);
  const Scale scale = scale_of<DType::int8>(block_max(most));
  if (threadIdx.x == 0) write_bits<2>(y + s.scale_at(row, 0), scale.bits);
#pragma unroll
  for (int k = 0; k < held; ++k)
    if (first + k * stride < s.columns) write_codes(s, y, row, first + k * stride, codes_of<DType::int8>(v[k], scale.inverse), wide);
  for (i64 column = first + held * stride; column < s.columns; column += stride) write_codes(s, y, row, column, codes_of<DType::int8>(read_plain(x, row, column, s.columns, wide), scale.inverse), wide);
}

template <class T>
void run(const op::Quantise& op, const Frame& f) {
  const T* x = f["x"].as<T>();
  auto* y = f["y"].as<std::uint8_t>();
  const bool wide = op.columns % 8 == 0 && aligned({x, y});
  with_stored(op.to, op.rows, op.columns, [&]<DType type>(const Stored<type>& s) {
    if constexpr (type == DType::fp8) {
      quantise_tiles<T><<<dim3(static_cast<unsigned>(s.across), static_cast<unsigned>((op.rows + 127) / 128)), threads, 0, f.stream()>>>(s, x, y, wide);
    } else if constexpr (type == DType::int8) {
      quantise_rows<T><<<static_cast<unsigned>(op.rows), threads, 0, f.stream()>>>(s, x, y, wide);
    } else {
      const i64 packs = s.across * (s.block / 8), all = op.rows * packs, each = threads * 4;
      quantise_groups<type, T><<<static_cast<unsigned>((all + each - 1) / each), threads, 0, f.stream()>>>(s, x, y, RowOf::of(packs, all + each), wide);
    }
  });
  kernels::check_launch("quantise", "rows=" + std::to_string(op.rows) + " columns=" + std::to_string(op.columns));
}

}  // namespace

void forward(const op::Quantise& op, const Frame& f) {
  if (op.rows == 0) return;
  op.from == DType::f32 ? run<float>(op, f) : run<bf16>(op, f);
}
void backward(const op::Quantise&, const Frame&) {}

std::string refusal(const op::Quantise& op) {
  if (op.to == DType::fp8 && op.rows > 128ll * 65535) return std::to_string(op.rows) + " rows; fp8 takes up to 8388480 in one call";
  const bool to = op.to == DType::fp8 || op.to == DType::mxfp4 || op.to == DType::nvfp4 || op.to == DType::int8 || op.to == DType::int4;
  if (to && (op.from == DType::bf16 || op.from == DType::f32)) return {};
  return "writes fp8, mxfp4, nvfp4, int8 and int4 from bf16 and f32, not " + std::string(name_of(op.to)) + " from " + std::string(name_of(op.from));
}
std::int64_t scratch(const op::Quantise&, Pass, Wants) { return 0; }

}  // namespace moeplan::cuda
