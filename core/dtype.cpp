#include "core/dtype.hpp"

#include "core/checked.hpp"

namespace moeplan {

Bytes stored_bytes(DType type, const Shape& shape) {
  const std::int64_t n = shape.elements();
  const std::int64_t last = shape.rank ? shape[shape.rank - 1] : 1;
  const std::int64_t rows = last ? n / last : 0;
  switch (type) {
    case DType::f32: case DType::i32: return {4 * n};
    case DType::bf16: case DType::f16: return {2 * n};
    case DType::i64: return {8 * n};
    case DType::u8: return {n};
    case DType::fp8: {
      if (shape.rank < 2) return {n + 4};
      const std::int64_t out = shape[shape.rank - 2], batch = rows / (out ? out : 1);
      return {n + 4 * batch * ceil_div(out, 128) * ceil_div(last, 128)};
    }
    case DType::mxfp4: return {rows * (ceil_div(last, 2) + ceil_div(last, 32))};
    case DType::nvfp4: return {rows * (ceil_div(last, 2) + ceil_div(last, 16))};
    case DType::int8: return {n + 2 * rows};
    case DType::int4: return {rows * (ceil_div(last, 2) + 2 * ceil_div(last, 32))};
    case DType::nf4: return {ceil_div(n, 2) + ceil_div(n, 64) + 4 * ceil_div(n, 64 * 256)};
  }
  return {0};
}

double bytes_per_element(DType type) {
  constexpr std::int64_t side = 1 << 14;  // a multiple of every block
  return static_cast<double>(stored_bytes(type, {side, side}).value) / static_cast<double>(side * side);
}

}  // namespace moeplan
