/// Block quantisation on the GPU, as stored.cuh lays it out; rounding.hpp has what each type makes of a number. Two of the scales are
/// rounded as they are stored, which the reference leaves out: int8's and int4's to bf16 (codes are taken under the rounded scale).
/// Mapping: fp8 a block of 256 threads owns a tile of 128 x 128 in registers; mxfp4, nvfp4, int4: 2 or 4 lanes of 8 columns share a scale; int8
/// a block owns a row and reads it twice (the second time from cache). Bytes: the values once, payload and scales once.

#include "kernels/cuda_frame.hpp"
#include "kernels/quantise/op.hpp"
#include "kernels/quantise/stored.cuh"

namespace moeplan::cuda {
namespace {

constexpr int threads = 256;

__device__ __forceinline__ float most_of(const float (&v)[8], float most) {
#pragma unroll
  for (int j = 0; j < 8; ++j) most = fmaxf(most, fabsf(v[j]));
  return most;
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
__global__ void __launch_bounds__(threads) quantise_tiles(Stored s, const T* x, std::uint8_t* y, bool wide) {
  const i64 tiles = (s.columns + 127) / 128, tile_row = blockIdx.x / tiles, tile_column = blockIdx.x % tiles;
  const i64 column = tile_column * 128 + threadIdx.x % 16 * 8, first = tile_row * 128 + threadIdx.x / 16;
  float v[8][8];
  float most = 0;
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const i64 row = first + 16 * r;
    if (row < s.rows && column < s.columns) {
      read_plain(x, row, column, s.columns, wide, v[r]);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) v[r][j] = 0;
    }
  }
#pragma unroll
  for (int r = 0; r < 8; ++r) most = most_of(v[r], most);
  const Scale scale = scale_of(DType::fp8, block_max(most));
  if (threadIdx.x == 0) write_bits(y + s.scale_at(tile_row * 128, tile_column * 128), scale.bits, 4);
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const i64 row = first + 16 * r;
    if (row >= s.rows || column >= s.columns) continue;
    std::uint32_t code[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) code[j] = code_of(DType::fp8, v[r][j] * scale.inverse);
    write_codes(s, y, row, column, code, wide);
  }
}

/// `lanes` neighbouring threads share a scale; every row has a whole number of such groups.
template <class T>
__global__ void __launch_bounds__(threads) quantise_groups(Stored s, const T* x, std::uint8_t* y, int lanes, RowOf packs, bool wide) {
  i64 row, pack;
  packs(static_cast<i64>(blockIdx.x) * threads + threadIdx.x, row, pack);
  const i64 column = pack * 8;
  const bool inside = row < s.rows && column < s.columns;
  float v[8] = {};
  if (inside) read_plain(x, row, column, s.columns, wide, v);
  float most = most_of(v, 0.0f);
  for (int o = lanes / 2; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
  if (!inside) return;
  const Scale scale = scale_of(s.type, most);
  if (column % s.block() == 0) write_bits(y + s.scale_at(row, column), scale.bits, s.scale_bytes());
  std::uint32_t code[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) code[j] = code_of(s.type, v[j] * scale.inverse);
  write_codes(s, y, row, column, code, wide);
}

template <class T>
__global__ void __launch_bounds__(threads) quantise_rows(Stored s, const T* x, std::uint8_t* y, bool wide) {
  const i64 row = blockIdx.x;
  float most = 0;
#pragma unroll 4
  for (i64 column = threadIdx.x * 8; column < s.columns; column += threads * 8) {
    float v[8];
    read_plain(x, row, column, s.columns, wide, v);
    most = most_of(v, most);
  }
  const Scale scale = scale_of(s.type, block_max(most));
  if (threadIdx.x == 0) write_bits(y + s.scale_at(row, 0), scale.bits, s.scale_bytes());
#pragma unroll 4
  for (i64 column = threadIdx.x * 8; column < s.columns; column += threads * 8) {
    float v[8];
    std::uint32_t code[8];
    read_plain(x, row, column, s.columns, wide, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) code[j] = code_of(s.type, v[j] * scale.inverse);
    write_codes(s, y, row, column, code, wide);
  }
}

template <class T>
void run(const op::Quantise& op, const Frame& f) {
  const Stored s{op.to, op.rows, op.columns};
  const T* x = f["x"].as<T>();
  auto* y = f["y"].as<std::uint8_t>();
  const bool wide = op.columns % 8 == 0 && aligned({x, y});
  if (op.to == DType::fp8) {
    const i64 tiles = (op.rows + 127) / 128 * ((op.columns + 127) / 128);
    quantise_tiles<T><<<static_cast<unsigned>(tiles), threads, 0, f.stream()>>>(s, x, y, wide);
  } else if (op.to == DType::int8) {
    quantise_rows<T><<<static_cast<unsigned>(op.rows), threads, 0, f.stream()>>>(s, x, y, wide);
  } else {
    const i64 lanes = s.block() / 8, packs = (op.columns + s.block() - 1) / s.block() * lanes, all = op.rows * packs;
    const RowOf of = RowOf::of(packs, all + threads);
    quantise_groups<T><<<static_cast<unsigned>((all + threads - 1) / threads), threads, 0, f.stream()>>>(s, x, y, static_cast<int>(lanes), of, wide);
  }
  kernels::check_launch("quantise", "rows=" + std::to_string(op.rows) + " columns=" + std::to_string(op.columns));
}

}  // namespace

void forward(const op::Quantise& op, const Frame& f) {
  if (op.rows == 0) return;
  op.from == DType::f32 ? run<float>(op, f) : run<bf16>(op, f);
}
void backward(const op::Quantise&, const Frame&) {}

std::string refusal(const op::Quantise& op) {
  const bool to = op.to == DType::fp8 || op.to == DType::mxfp4 || op.to == DType::nvfp4 || op.to == DType::int8 || op.to == DType::int4;
  if (to && (op.from == DType::bf16 || op.from == DType::f32)) return {};
  return "writes fp8, mxfp4, nvfp4, int8 and int4 from bf16 and f32, not " + std::string(name_of(op.to)) + " from " + std::string(name_of(op.from));
}
std::int64_t scratch(const op::Quantise&, Pass, Wants) { return 0; }

}  // namespace moeplan::cuda
