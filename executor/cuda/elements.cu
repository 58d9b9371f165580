#include "executor/cuda/elements.hpp"

#include "core/error.hpp"
#include "executor/backend/backend.hpp"
#include "kernels/base/pack.cuh"

namespace moeplan::cuda {
namespace {

constexpr int threads = 256;

unsigned blocks_for(i64 n) { return static_cast<unsigned>(n < i64{threads} * 8192 ? (n + threads - 1) / threads : 8192); }
std::string size(i64 n) { return "elements=" + std::to_string(n); }

template <class T, bool into_base>
__global__ void __launch_bounds__(threads) move_columns(const T* from, T* to, i64 rows, const std::int32_t* columns, i64 count, i64 base) {
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < rows * count; i += static_cast<i64>(gridDim.x) * threads) {
    const i64 at = i / count * base + columns[i % count];
    if constexpr (into_base) to[at] = from[i];
    else to[i] = from[at];
  }
}

template <bool into_base>
void move(const void* from, void* to, i64 rows, const Columns& c, i64 bytes, cudaStream_t stream) {
  if (rows == 0 || c.count == 0) return;
  const auto launch = [&]<class T>(T) { move_columns<T, into_base><<<blocks_for(rows * c.count), threads, 0, stream>>>(static_cast<const T*>(from), static_cast<T*>(to), rows, c.columns, c.count, c.base); };
  switch (bytes) {
    case 1: launch(std::uint8_t{}); break;
    case 2: launch(std::uint16_t{}); break;
    case 4: launch(std::uint32_t{}); break;
    case 8: launch(std::uint64_t{}); break;
    default: throw InputError("CUDA backend", "a view of elements of " + std::to_string(bytes) + " bytes", "views are of 1, 2, 4 or 8");
  }
  kernels::check_launch("columns of a view", size(rows * c.count));
}

template <class From, class To>
__global__ void __launch_bounds__(threads) combined(const From* from, To* to, i64 n, float scale, bool add) {
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * threads) {
    const float v = scale * widened(from[i]);
    to[i] = narrowed<To>(add ? widened(to[i]) + v : v);
  }
}

/// Rows of an exchange are put in order by many copies of a few megabytes: 16 bytes a thread, where `combined` moves one element.
__global__ void __launch_bounds__(threads) copied(const uint4* from, uint4* to, i64 packs) {
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < packs; i += static_cast<i64>(gridDim.x) * threads) to[i] = from[i];
}

template <class T>
__global__ void __launch_bounds__(threads) normal_numbers(T* to, i64 n, std::uint64_t state, float scale) {
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * threads)
    to[i] = narrowed<T>(static_cast<float>(nearly_normal(state, static_cast<std::uint64_t>(i))) * scale);
}

/// A warp a row: its sum, then every lane adds its columns' shares to the warp's sums; the block's warps are added in order.
constexpr int share_blocks = 128, share_warps = 4;
__global__ void __launch_bounds__(32 * share_warps) partial_shares(const float* from, float* parts, i64 rows, i64 columns) {
  extern __shared__ float sums[];   // [warps, columns]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const mine = sums + warp * columns;
  for (i64 c = lane; c < columns; c += 32) mine[c] = 0;
  for (i64 row = static_cast<i64>(blockIdx.x) * share_warps + warp; row < rows; row += share_blocks * share_warps) {
    float sum = 0;
    for (i64 c = lane; c < columns; c += 32) sum += from[row * columns + c];
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (sum <= 0) continue;
    const float scale = 1 / sum;
    for (i64 c = lane; c < columns; c += 32) mine[c] += scale * from[row * columns + c];
  }
  __syncthreads();
  for (i64 c = threadIdx.x; c < columns; c += 32 * share_warps) {
    float sum = 0;
    for (int w = 0; w < share_warps; ++w) sum += sums[w * columns + c];
    parts[blockIdx.x * columns + c] = sum;
  }
}

__global__ void __launch_bounds__(threads) add_shares(const float* parts, float* to, i64 columns) {
  const i64 c = static_cast<i64>(blockIdx.x) * threads + threadIdx.x;
  if (c >= columns) return;
  float sum = 0;
#pragma unroll 32
  for (int b = 0; b < share_blocks; ++b) sum += parts[b * columns + c];
  to[c] = sum;
}

/// f(a value of the type).
template <class F>
void with_type(DType type, const F& f) {
  if (type == DType::f32) f(float{});
  else if (type == DType::bf16) f(bf16{});
  else if (type == DType::f16) f(f16{});
  else throw InputError("CUDA backend", "cannot convert " + std::string(name_of(type)), "f32, bf16 and f16 are");
}

}  // namespace

void gather_columns(const void* base, void* dense, i64 rows, const Columns& columns, i64 bytes, cudaStream_t stream) { move<false>(base, dense, rows, columns, bytes, stream); }
void scatter_columns(const void* dense, void* base, i64 rows, const Columns& columns, i64 bytes, cudaStream_t stream) { move<true>(dense, base, rows, columns, bytes, stream); }

std::int64_t share_scratch(i64 columns) { return 4 * share_blocks * columns; }

void sum_shares(const float* from, float* to, i64 rows, i64 columns, float* scratch, cudaStream_t stream) {
  if (columns == 0) return;
  if (columns > 3072) throw InputError("CUDA backend", "shares of " + std::to_string(columns) + " columns", "up to 3072");
  partial_shares<<<share_blocks, 32 * share_warps, static_cast<std::size_t>(4 * share_warps * columns), stream>>>(from, scratch, rows, columns);
  add_shares<<<blocks_for(columns), threads, 0, stream>>>(scratch, to, columns);
  kernels::check_launch("shares", "rows=" + std::to_string(rows) + " columns=" + std::to_string(columns));
}

void fill_normal(void* to, DType type, i64 n, std::uint64_t state, float deviation, cudaStream_t stream) {
  if (n == 0) return;
  with_type(type, [&]<class T>(T) { normal_numbers<<<blocks_for(n), threads, 0, stream>>>(static_cast<T*>(to), n, state, deviation / kNearlyNormalDeviation); });
  kernels::check_launch("random numbers", size(n));
}

void combine(const void* from, DType from_type, void* to, DType to_type, i64 n, float scale, bool add, cudaStream_t stream) {
  if (n == 0) return;
  if (from_type == DType::i32 && to_type == DType::i32 && !add && scale == 1)
    return kernels::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(4 * n), cudaMemcpyDeviceToDevice, stream), "copy integers");
  const i64 bytes = n * (from_type == DType::f32 ? 4 : 2);
  const bool plain = from_type == DType::f32 || from_type == DType::bf16 || from_type == DType::f16;
  if (plain && from_type == to_type && !add && scale == 1 && (reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) | static_cast<std::uintptr_t>(bytes)) % 16 == 0) {
    copied<<<blocks_for(bytes / 16), threads, 0, stream>>>(static_cast<const uint4*>(from), static_cast<uint4*>(to), bytes / 16);
    return kernels::check_launch("copy", size(n));
  }
  with_type(from_type, [&]<class From>(From) {
    with_type(to_type, [&]<class To>(To) { combined<<<blocks_for(n), threads, 0, stream>>>(static_cast<const From*>(from), static_cast<To*>(to), n, scale, add); });
  });
  kernels::check_launch("element sums", size(n));
}

}  // namespace moeplan::cuda
