#pragma once
/// Packs of V neighbouring values in registers as memory holds them, and the two mappings of memory-bound kernels:
/// `pointwise` (a thread owns packs of a flat range) here, rows (a group of threads owns a row) in rows.cuh.
///
/// V = 8 makes every access of bf16 16 bytes (fp32: two of them); V = 1 is the path for widths that are no multiple of 8 and for
/// views that do not start on 16 bytes. Both run the same formulas.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "kernels/base/cuda.hpp"
#include "kernels/base/divisor.hpp"

namespace moeplan::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;
using i64 = std::int64_t;

__device__ __forceinline__ float widened(float v) { return v; }
__device__ __forceinline__ float widened(bf16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float widened(f16 v) { return __half2float(v); }
template <class T>
__device__ __forceinline__ T narrowed(float v) {
  if constexpr (sizeof(T) == 4) return v;
  else if constexpr (std::is_same_v<T, bf16>) return __float2bfloat16(v);
  else return __float2half(v);
}

/// V values of type T (float, bf16 or f16).
template <class T, int V>
struct Pack {
  static constexpr int words = static_cast<int>(sizeof(T)) * V / 4;
  static_assert(words * 4 == static_cast<int>(sizeof(T)) * V && (words == 1 || words == 2 || words % 4 == 0));
  std::uint32_t word[words];

  /// j is a constant after unrolling.
  __device__ __forceinline__ float operator[](int j) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word[j]);
    } else if constexpr (std::is_same_v<T, bf16>) {
      return __uint_as_float(j % 2 == 0 ? word[j / 2] << 16 : word[j / 2] & 0xffff0000u);
    } else {
      return __half2float(
          __ushort_as_half(static_cast<unsigned short>(j % 2 == 0 ? word[j / 2] : word[j / 2] >> 16)));
    }
  }
  __device__ __forceinline__ static Pack of(const float (&v)[V]) {
    Pack p;
#pragma unroll
    for (int i = 0; i < words; ++i) {
      if constexpr (sizeof(T) == 4) {
        p.word[i] = __float_as_uint(v[i]);
      } else if constexpr (std::is_same_v<T, bf16>) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
        p.word[i] = *reinterpret_cast<const std::uint32_t*>(&two);
      } else {
        const __half2 two = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
        p.word[i] = *reinterpret_cast<const std::uint32_t*>(&two);
      }
    }
    return p;
  }
};
template <class T>
struct Pack<T, 1> {
  T value;
  __device__ __forceinline__ float operator[](int) const { return widened(value); }
  __device__ __forceinline__ static Pack of(const float (&v)[1]) { return {narrowed<T>(v[0])}; }
};

/// Reads V values from p. `streaming`: they will not be read again soon (evict first). Not the read-only path: outputs may be the inputs.
template <int V, bool streaming = true, class T>
__device__ __forceinline__ Pack<T, V> load(const T* p) {
  Pack<T, V> out;
  if constexpr (V == 1) {
    out.value = *p;
  } else if constexpr (Pack<T, V>::words == 1) {
    out.word[0] = *reinterpret_cast<const std::uint32_t*>(p);
  } else if constexpr (Pack<T, V>::words == 2) {
    const uint2 q = streaming ? __ldcs(reinterpret_cast<const uint2*>(p)) : *reinterpret_cast<const uint2*>(p);
    out.word[0] = q.x, out.word[1] = q.y;
  } else {
#pragma unroll
    for (int i = 0; i < Pack<T, V>::words / 4; ++i) {
      const uint4* at = reinterpret_cast<const uint4*>(p) + i;
      const uint4 q = streaming ? __ldcs(at) : *at;
      out.word[4 * i] = q.x, out.word[4 * i + 1] = q.y, out.word[4 * i + 2] = q.z, out.word[4 * i + 3] = q.w;
    }
  }
  return out;
}
/// Writes V values to p (global memory) in stores of up to 16 bytes: nvcc takes an assignment to uint4 apart into its words in some kernels.
template <int V, class T>
__device__ __forceinline__ void store(T* p, const Pack<T, V>& v) {
  if constexpr (V == 1) {
    *p = v.value;
  } else if constexpr (Pack<T, V>::words == 1) {
    *reinterpret_cast<std::uint32_t*>(p) = v.word[0];
  } else if constexpr (Pack<T, V>::words == 2) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "r"(v.word[0]), "r"(v.word[1]) : "memory");
  } else {
#pragma unroll
    for (int i = 0; i < Pack<T, V>::words / 4; ++i)
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(reinterpret_cast<const uint4*>(p) + i)), "r"(v.word[4 * i]),
                   "r"(v.word[4 * i + 1]), "r"(v.word[4 * i + 2]), "r"(v.word[4 * i + 3])
                   : "memory");
  }
}
template <int V, class T>
__device__ __forceinline__ void store(T* p, const float (&v)[V]) { store<V>(p, Pack<T, V>::of(v)); }

/// True if all pointers start on 16 bytes (null ones count).
inline bool aligned(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) return false;
  return true;
}

/// Index i into rows of `width`: quotient and remainder, by 32-bit arithmetic where the whole range allows.
struct RowOf {
  i64 width;
  bool small;
  Divisor by;
  static RowOf of(i64 width, i64 range) {
    const bool small = width >= 1 && std::max(width, range) <= std::numeric_limits<std::int32_t>::max();
    return {width, small, small ? Divisor::of(static_cast<std::uint32_t>(width)) : Divisor{}};
  }
  __device__ __forceinline__ void operator()(i64 i, i64& row, i64& column) const {
    if (small) {
      const unsigned a = static_cast<unsigned>(i), r = by.quotient(a);
      row = r, column = a - r * static_cast<unsigned>(width);
    } else {
      row = i / width, column = i - row * width;
    }
  }
};

inline constexpr int pointwise_threads = 256;

/// Values of a pack where views allow: F's own `pack`, else 8. Results in fp32 take 4, since two 16-byte writes a thread would leave half of
/// every 32-byte sector to the second.
template <class F>
constexpr int pack_of() {
  if constexpr (requires { F::pack; }) return F::pack;
  else return 8;
}

/// F: `template <int V> struct Piece` (what is read), `template <int V> Piece<V> load(i64 i) const`,
/// `template <int V> void store(i64 i, const Piece<V>&) const` for the elements i ... i + V - 1, and `unroll`: packs a thread has in flight.
template <int V, class F>
__global__ void __launch_bounds__(pointwise_threads) pointwise_kernel(i64 elements, F f) {
  constexpr int unroll = F::unroll;
  const i64 first = static_cast<i64>(blockIdx.x) * (pointwise_threads * unroll) + threadIdx.x, packs = elements / V;
  typename F::template Piece<V> piece[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u)
    if (const i64 i = first + u * pointwise_threads; i < packs) piece[u] = f.template load<V>(i * V);
#pragma unroll
  for (int u = 0; u < unroll; ++u)
    if (const i64 i = first + u * pointwise_threads; i < packs) f.template store<V>(i * V, piece[u]);
  if constexpr (V > 1) {   // what is left after the last whole pack
    const i64 rest = packs * V + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < elements) f.template store<1>(rest, f.template load<1>(rest));
  }
}

/// Runs `f` over `elements`, in packs if `wide`. Nothing is launched for none.
template <class F>
void pointwise(i64 elements, bool wide, const F& f, cudaStream_t stream, std::string_view name) {
  if (elements <= 0) return;
  constexpr int pack = pack_of<F>();
  const i64 packs = wide ? elements / pack : elements, each = static_cast<i64>(pointwise_threads) * F::unroll;
  const auto blocks = static_cast<unsigned>(packs > each ? (packs + each - 1) / each : 1);
  if (wide) pointwise_kernel<pack><<<blocks, pointwise_threads, 0, stream>>>(elements, f);
  else pointwise_kernel<1><<<blocks, pointwise_threads, 0, stream>>>(elements, f);
  kernels::check_launch(name, "elements=" + std::to_string(elements));
}

}  // namespace moeplan::cuda
