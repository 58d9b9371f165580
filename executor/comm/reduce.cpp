#include "executor/comm/reduce.hpp"

#include <bit>
#include <cmath>
#include <type_traits>

namespace moeplan {
namespace {

struct Plain {
  template <class T>
  static T load(T v) { return v; }
  template <class T>
  static T store(T v) { return v; }
};
struct Half {
  static float load(std::uint16_t v) { return bf16_to_float(v); }
  static std::uint16_t store(float v) { return float_to_bf16(v); }
};

template <class T>
T combined(T a, T b, Reduction reduction) {
  if constexpr (std::is_floating_point_v<T>) {
    if (reduction != Reduction::sum && (std::isnan(a) || std::isnan(b))) return std::isnan(a) ? a : b;
  }
  switch (reduction) {
    case Reduction::max: return a < b ? b : a;
    case Reduction::min: return b < a ? b : a;
    case Reduction::sum: break;
  }
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

template <class T, class Convert>
void reduce_typed(std::span<const void* const> parts, std::int64_t begin, std::int64_t end, Reduction reduction, std::span<void* const> outputs) {
  for (std::int64_t i = begin; i < end; ++i) {
    auto sum = Convert::load(static_cast<const T*>(parts[0])[i]);
    for (std::size_t p = 1; p < parts.size(); ++p) sum = combined(sum, Convert::load(static_cast<const T*>(parts[p])[i]), reduction);
    for (void* out : outputs) static_cast<T*>(out)[i - begin] = Convert::store(sum);
  }
}

}  // namespace

float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

void reduce_slice(std::span<const void* const> parts, std::int64_t begin, std::int64_t end, DType dtype, Reduction reduction,
                  std::span<void* const> outputs) {
  switch (dtype) {
    case DType::f32: return reduce_typed<float, Plain>(parts, begin, end, reduction, outputs);
    case DType::bf16: return reduce_typed<std::uint16_t, Half>(parts, begin, end, reduction, outputs);
    case DType::i32: return reduce_typed<std::int32_t, Plain>(parts, begin, end, reduction, outputs);
    case DType::i64: return reduce_typed<std::int64_t, Plain>(parts, begin, end, reduction, outputs);
    default: return reduce_typed<std::uint8_t, Plain>(parts, begin, end, reduction, outputs);
  }
}

}  // namespace moeplan
