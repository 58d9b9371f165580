/// Block-quantised values back into plain ones on the GPU; kernels/quantise/stored.cuh has the layout.
/// Mapping: a thread has 8 columns: 4 or 8 bytes of payload in, a scale from cache, 16 or 32 bytes out. Bytes: payload and scales, then the values.

#include "kernels/cuda_frame.hpp"
#include "kernels/dequantise/op.hpp"
#include "kernels/quantise/stored.cuh"

namespace moeplan::cuda {
namespace {

struct Codes {
  std::uint32_t code[8];
  std::uint32_t scale;
};

/// Pointwise over packs: element i of `pointwise` is a pack of 8 columns.
template <class T>
struct Expand {
  static constexpr int unroll = 4;
  Stored s;
  const std::uint8_t* x;
  T* y;
  RowOf packs;
  bool wide;
  template <int V>
  using Piece = Codes;
  template <int V>
  __device__ Codes load(i64 i) const {
    i64 row, pack;
    packs(i, row, pack);
    Codes c;
    read_codes(s, x, row, pack * 8, c.code, wide);
    c.scale = read_bits(x + s.scale_at(row, pack * 8), s.scale_bytes());
    return c;
  }
  template <int V>
  __device__ void store(i64 i, const Codes& c) const {
    i64 row, pack;
    packs(i, row, pack);
    const float scale = value_of_scale(s.type, c.scale);
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = value_of_code(s.type, c.code[j]) * scale;
    T* to = y + row * s.columns + pack * 8;
    if (wide) {
      cuda::store<8>(to, v);
      return;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (pack * 8 + j < s.columns) to[j] = narrowed<T>(v[j]);
  }
};

template <class T>
void run(const op::Dequantise& op, const Frame& f) {
  const auto* x = f["x"].as<std::uint8_t>();
  T* y = f["y"].as<T>();
  const i64 packs = (op.columns + 7) / 8, all = op.rows * packs;
  const Expand<T> e{{op.from, op.rows, op.columns}, x, y, RowOf::of(packs, all), op.columns % 8 == 0 && aligned({x, y})};
  pointwise(all, false, e, f.stream(), "dequantise");
}

}  // namespace

void forward(const op::Dequantise& op, const Frame& f) { op.to == DType::f32 ? run<float>(op, f) : run<bf16>(op, f); }
void backward(const op::Dequantise&, const Frame&) {}

std::string refusal(const op::Dequantise& op) {
  const bool from = op.from == DType::fp8 || op.from == DType::mxfp4 || op.from == DType::nvfp4 || op.from == DType::int8 || op.from == DType::int4;
  if (from && (op.to == DType::bf16 || op.to == DType::f32)) return {};
  return "reads fp8, mxfp4, nvfp4, int8 and int4 into bf16 and f32, not " + std::string(name_of(op.from)) + " into " + std::string(name_of(op.to));
}
std::int64_t scratch(const op::Dequantise&, Pass, Wants) { return 0; }

}  // namespace moeplan::cuda
