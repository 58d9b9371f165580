#pragma once
/// How block-quantised matrices lie in device memory: the payload row by row, then the scales, together the bytes of `stored_bytes`.
///   fp8     E4M3, a byte a value;   scales f32 [ceil(rows / 128), ceil(columns / 128)]     value = code scale
///   mxfp4   E2M1, two a byte;       scales E8M0 [rows, ceil(columns / 32)]                 value = code 2^(scale - 127)
///   nvfp4   E2M1, two a byte;       scales E4M3 [rows, ceil(columns / 16)]
///   int8    two's complement;       scales bf16 [rows]
///   int4    code + 8, two a byte;   scales bf16 [rows, ceil(columns / 32)]
/// Two a byte: the even column in the low nibble (OCP Microscaling v1.0, gpt-oss); a row starts on a byte of its own. nf4 is not here.

#include <cuda_fp8.h>

#include "core/dtype.hpp"
#include "kernels/base/pack.cuh"

namespace moeplan::cuda {

/// The type is the compiler's to know: what depends on it then is shifts and constants, where 64-bit divisions an element would cost more than
/// the memory does.
template <DType type_>
struct Stored {
  static constexpr DType type = type_;
  static constexpr bool nibbles = type == DType::mxfp4 || type == DType::nvfp4 || type == DType::int4;
  static constexpr int scale_bytes = type == DType::fp8 ? 4 : type == DType::int8 || type == DType::int4 ? 2 : 1;
  /// Columns that share a scale; int8: all of a row.
  static constexpr int block = type == DType::fp8 ? 128 : type == DType::nvfp4 ? 16 : 32;
  i64 rows, columns, row_bytes, across;

  static Stored of(i64 rows, i64 columns) {
    return {rows, columns, nibbles ? (columns + 1) / 2 : columns, type == DType::int8 ? 1 : (columns + block - 1) / block};
  }
  __device__ __forceinline__ i64 payload() const { return rows * row_bytes; }
  /// Byte of the scale of (row, column).
  __device__ __forceinline__ i64 scale_at(i64 row, i64 column) const {
    if constexpr (type == DType::int8) return payload() + row * scale_bytes;
    else return payload() + ((type == DType::fp8 ? row >> 7 : row) * across + static_cast<unsigned>(column) / block) * scale_bytes;
  }
};

/// Calls f(Stored<type>) for the type, which must be one of the five.
template <class F>
void with_stored(DType type, i64 rows, i64 columns, F&& f) {
  switch (type) {
    case DType::fp8: f(Stored<DType::fp8>::of(rows, columns)); break;
    case DType::mxfp4: f(Stored<DType::mxfp4>::of(rows, columns)); break;
    case DType::nvfp4: f(Stored<DType::nvfp4>::of(rows, columns)); break;
    case DType::int8: f(Stored<DType::int8>::of(rows, columns)); break;
    default: f(Stored<DType::int4>::of(rows, columns));
  }
}

/// Codes: the payload of a value that has already been divided by its scale.
__device__ __forceinline__ std::uint32_t e4m3_of(float v) { return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3); }
/// The exponent and mantissa fields at float's places, which is off by a power of two; conversions would be the special function unit's.
__device__ __forceinline__ float from_e4m3(std::uint32_t code) {
  const float value = __uint_as_float((code & 128u) << 24 | (code & 127u) << 20) * 0x1p120f;
  return (code & 127u) == 127u ? __uint_as_float(0x7fffffffu) : value;
}
/// Nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to the even code, larger ones 6. Times 2^-126 the codes are the exponent and one bit of mantissa, and
/// 0.5 is a denormal as it is among them.
__device__ __forceinline__ std::uint32_t e2m1_of(float v) {
  const std::uint32_t bits = __float_as_uint(fabsf(v) * 0x1p-126f);
  return min((bits + 0x1fffffu + (bits >> 22 & 1u)) >> 22, 7u) | (__float_as_uint(v) >> 28 & 8u);
}
__device__ __forceinline__ float from_e2m1(std::uint32_t code) { return __uint_as_float((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f; }

/// A scale as it is stored, from its block's largest magnitude: the bits, its value, and what values are multiplied with to become codes.
struct Scale {
  std::uint32_t bits;
  float inverse;
};
template <DType type>
__device__ __forceinline__ Scale scale_of(float most) {
  const auto bf16_of = [](float v) { return static_cast<std::uint32_t>(__bfloat16_as_ushort(__float2bfloat16(v))); };
  // A scale below fp32's normal numbers has no finite inverse: its block becomes zeros.
  const auto inverse_of = [](float scale) { return scale >= 1.17549435e-38f ? 1.0f / scale : 0.0f; };
  switch (type) {
    case DType::fp8: {
      const float scale = most / 448.0f;
      return {__float_as_uint(scale), inverse_of(scale)};
    }
    case DType::mxfp4: {   // 2^(floor(log2 most) - 2), no less than 2^-127
      const std::uint32_t exponent = __float_as_uint(most) >> 23, bits = exponent > 2 ? exponent - 2 : 0;
      return {bits, __uint_as_float((254u - bits) << 23)};
    }
    case DType::nvfp4: {
      const std::uint32_t bits = e4m3_of(most / 6.0f);
      return {bits, inverse_of(from_e4m3(bits))};
    }
    default: {
      const std::uint32_t bits = bf16_of(most / (type == DType::int8 ? 127.0f : 7.0f));
      return {bits, inverse_of(__uint_as_float(bits << 16))};
    }
  }
}
template <DType type>
__device__ __forceinline__ float value_of_scale(std::uint32_t bits) {
  switch (type) {
    case DType::fp8: return __uint_as_float(bits);
    case DType::mxfp4: return __uint_as_float(bits == 0 ? 0x00400000u : bits << 23);
    case DType::nvfp4: return from_e4m3(bits);
    default: return __uint_as_float(bits << 16);
  }
}

template <DType type>
__device__ __forceinline__ std::uint32_t code_of(float divided) {
  switch (type) {
    case DType::fp8: return e4m3_of(divided);
    case DType::int8: return static_cast<std::uint32_t>(static_cast<int>(rintf(fminf(fmaxf(divided, -127.0f), 127.0f)))) & 255u;
    case DType::int4: return static_cast<std::uint32_t>(static_cast<int>(rintf(fminf(fmaxf(divided, -7.0f), 7.0f))) + 8);
    default: return e2m1_of(divided);
  }
}
template <DType type>
__device__ __forceinline__ float value_of_code(std::uint32_t code) {
  switch (type) {
    case DType::fp8: return from_e4m3(code);
    case DType::int8: return __uint_as_float(0x4b000000u | (code ^ 128u)) - 8388736.0f;   // 2^23 + code + 128
    case DType::int4: return __uint_as_float(0x4b000000u | code) - 8388616.0f;
    default: return from_e2m1(code);
  }
}

/// Scales lie behind a payload of any number of bytes: read and written byte by byte where they are not aligned.
template <int bytes>
__device__ __forceinline__ std::uint32_t read_bits(const std::uint8_t* p) {
  if (bytes == 1) return *p;
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  if (bytes == 2) return address % 2 == 0 ? *reinterpret_cast<const std::uint16_t*>(p) : p[0] | static_cast<std::uint32_t>(p[1]) << 8;
  if (address % 4 == 0) return *reinterpret_cast<const std::uint32_t*>(p);
  return p[0] | static_cast<std::uint32_t>(p[1]) << 8 | static_cast<std::uint32_t>(p[2]) << 16 | static_cast<std::uint32_t>(p[3]) << 24;
}
template <int bytes>
__device__ __forceinline__ void write_bits(std::uint8_t* p, std::uint32_t bits) {
#pragma unroll
  for (int b = 0; b < bytes; ++b) p[b] = static_cast<std::uint8_t>(bits >> 8 * b);
}

/// The codes of 8 neighbouring columns as they are stored: 4 bytes of nibbles, else 8.
template <DType type>
struct Codes {
  std::uint32_t word[Stored<type>::nibbles ? 1 : 2];
  __device__ __forceinline__ std::uint32_t operator[](int j) const {
    if constexpr (Stored<type>::nibbles) return word[0] >> 4 * j & 15u;
    else return word[j / 4] >> j % 4 * 8 & 255u;
  }
};
/// Four codes of E2M1, two to a word (bits 0 and 16), from pairs of bf16 under an inverse scale that is a power of two: rounded in fp16 times 2^-14, whose bits there are
/// exponent and mantissa of E2M1 as in `e2m1_of`, and which holds every bf16 from 1/8 on whole; less is 0 in either.
__device__ __forceinline__ std::uint32_t e2m1_pair(float first, float second, float factor) {
  const __half2 both = __floats2half2_rn(first * factor, second * factor);
  const std::uint32_t bits = *reinterpret_cast<const std::uint32_t*>(&both), magnitude = bits & 0x7fff7fffu;
  const std::uint32_t rounded = __vminu2(magnitude + 0x00ff00ffu + (magnitude >> 9 & 0x00010001u), 0x0fff0fffu);
  return (rounded >> 9 & 0x00070007u) | (bits >> 12 & 0x00080008u);
}

/// The codes of 8 values, multiplied by the inverse of their scale.
template <DType type, class T>
__device__ __forceinline__ Codes<type> codes_of(const Pack<T, 8>& v, float inverse) {
  Codes<type> out{};
  if constexpr (type == DType::mxfp4 && std::is_same_v<T, bf16>) {
    const float factor = inverse * 0x1p-14f;
    const std::uint32_t low = e2m1_pair(v[0], v[1], factor) | e2m1_pair(v[2], v[3], factor) << 8, high = e2m1_pair(v[4], v[5], factor) | e2m1_pair(v[6], v[7], factor) << 8;
    out.word[0] = __byte_perm(low | low >> 12, high | high >> 12, 0x5410u);
  } else if constexpr (type == DType::fp8) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out.word[i / 2] |= static_cast<std::uint32_t>(__nv_cvt_float2_to_fp8x2(make_float2(v[2 * i] * inverse, v[2 * i + 1] * inverse), __NV_SATFINITE, __NV_E4M3)) << i % 2 * 16;
  } else {
    constexpr int bits = Stored<type>::nibbles ? 4 : 8, each = 32 / bits;
#pragma unroll
    for (int j = 0; j < 8; ++j) out.word[j / each] |= code_of<type>(v[j] * inverse) << j % each * bits;
  }
  return out;
}

/// Writes the codes of 8 neighbouring columns from `column` (a multiple of 8) on; columns past the end are left out.
template <DType type>
__device__ __forceinline__ void write_codes(const Stored<type>& s, std::uint8_t* data, i64 row, i64 column, const Codes<type>& codes, bool wide) {
  std::uint8_t* to = data + row * s.row_bytes + (s.nibbles ? column / 2 : column);
  if constexpr (Stored<type>::nibbles) {
    const std::uint32_t all = codes.word[0];
    if (wide) {
      *reinterpret_cast<std::uint32_t*>(to) = all;
      return;
    }
    for (int b = 0; b < 4; ++b)
      if (column + 2 * b < s.columns) to[b] = static_cast<std::uint8_t>(column + 2 * b + 1 < s.columns ? all >> 8 * b : (all >> 8 * b) & 15u);
    return;
  } else {
    if (wide) {
      *reinterpret_cast<uint2*>(to) = make_uint2(codes.word[0], codes.word[1]);
      return;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (column + j < s.columns) to[j] = static_cast<std::uint8_t>(codes[j]);
  }
}
template <DType type>
__device__ __forceinline__ Codes<type> read_codes(const Stored<type>& s, const std::uint8_t* data, i64 row, i64 column, bool wide) {
  constexpr bool nibbles = Stored<type>::nibbles;
  const std::uint8_t* from = data + row * s.row_bytes + (nibbles ? column / 2 : column);
  Codes<type> out{};
  if (!wide) {
#pragma unroll
    for (int b = 0; b < (nibbles ? 4 : 8); ++b)
      if (column + (nibbles ? 2 * b : b) < s.columns) out.word[b / 4] |= static_cast<std::uint32_t>(from[b]) << b % 4 * 8;
  } else if constexpr (nibbles) {
    out.word[0] = __ldcs(reinterpret_cast<const std::uint32_t*>(from));
  } else {
    const uint2 q = __ldcs(reinterpret_cast<const uint2*>(from));
    out.word[0] = q.x, out.word[1] = q.y;
  }
  return out;
}

/// Two products of bf16, each rounded once.
__device__ __forceinline__ std::uint32_t products(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 both = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
/// A bf16 in both halves.
__device__ __forceinline__ std::uint32_t twice(float v) {
  const __nv_bfloat162 both = __float2bfloat162_rn(v);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
/// Four codes of E2M1 in the low half of `codes` as bf16, neighbours in a word: their bytes looked up, the signs beside.
__device__ __forceinline__ void e2m1_as_bf16(std::uint32_t codes, std::uint32_t& first, std::uint32_t& second) {
  const std::uint32_t which = codes & 0x7777u, low = __byte_perm(0xc0800000u, 0xc0804000u, which), high = __byte_perm(0x3f3f3f00u, 0x40404040u, which);
  first = __byte_perm(low, high, 0x5140u) | (codes << 12 & 0x8000u) | (codes << 24 & 0x80000000u);
  second = __byte_perm(low, high, 0x7362u) | (codes << 4 & 0x8000u) | (codes << 16 & 0x80000000u);
}

/// 8 values as bf16: two at a time where code, scale and product let bf16 do it with the one rounding that fp32 would end in. Codes and scales of
/// the 4-bit types are exact in bf16.
template <DType type>
__device__ __forceinline__ Pack<bf16, 8> expanded(const Codes<type>& codes, std::uint32_t scale_bits) {
  const float scale = value_of_scale<type>(scale_bits);
  Pack<bf16, 8> out;
  if constexpr (type == DType::mxfp4 || type == DType::nvfp4) {
    const std::uint32_t factor = twice(scale);
    e2m1_as_bf16(codes.word[0], out.word[0], out.word[1]), e2m1_as_bf16(codes.word[0] >> 16, out.word[2], out.word[3]);
#pragma unroll
    for (std::uint32_t& word : out.word) word = products(word, factor);
    return out;
  } else if constexpr (type == DType::int4) {   // 128 + code has no bit below 1 in bf16
    const std::uint32_t factor = twice(scale);
    const __nv_bfloat162 middle = __float2bfloat162_rn(-136.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t byte = codes.word[0] >> 8 * i, raised = (byte & 15u) | (byte << 12 & 0xf0000u) | 0x43004300u;
      const __nv_bfloat162 value = __hadd2(*reinterpret_cast<const __nv_bfloat162*>(&raised), middle);
      out.word[i] = products(*reinterpret_cast<const std::uint32_t*>(&value), factor);
    }
    return out;
  } else {
    if constexpr (type == DType::fp8) {
      const auto has_nan = [](std::uint32_t word) { return ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; };
      if (fabsf(scale) < 0x1p7f && (has_nan(codes.word[0]) | has_nan(codes.word[1])) == 0) {
        const float raised = scale * 0x1p120f;   // for E4M3's fields at bf16's places
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t bytes = __byte_perm(codes.word[i / 2], 0, i % 2 == 0 ? 0x4140u : 0x4342u), fields = (bytes << 8 & 0x80008000u) | (bytes << 4 & 0x07f007f0u);
          const __nv_bfloat162 two = __floats2bfloat162_rn(__uint_as_float(fields << 16) * raised, __uint_as_float(fields & 0xffff0000u) * raised);
          out.word[i] = *reinterpret_cast<const std::uint32_t*>(&two);
        }
        return out;
      }
    }
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = value_of_code<type>(codes[j]) * scale;
    return Pack<bf16, 8>::of(v);
  }
}

/// 8 plain values from `column` on, as memory holds them; past the end zeros.
template <class T>
__device__ __forceinline__ Pack<T, 8> read_plain(const T* x, i64 row, i64 column, i64 columns, bool wide) {
  const T* from = x + row * columns + column;
  if (wide) return load<8>(from);
  float v[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = column + j < columns ? widened(from[j]) : 0.0f;
  return Pack<T, 8>::of(v);
}

}  // namespace moeplan::cuda
