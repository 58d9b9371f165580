/// Block-quantised values back into plain ones on the GPU; kernels/quantise/stored.cuh has the layout.
/// Mapping: a thread has 8 columns: 4 or 8 bytes of payload in, a scale from cache, 16 or 32 bytes out. Bytes: payload and scales, then the values.

#include "kernels/cuda_frame.hpp"
#include "kernels/dequantise/op.hpp"
#include "kernels/dequantise/rows.hpp"
#include "kernels/quantise/stored.cuh"

namespace moeplan::cuda {
namespace {

/// 8 columns as they are stored, and where they are.
template <DType type>
struct Held {
  Codes<type> codes;
  std::uint32_t scale;
  i64 row, column;
};

/// Pointwise over packs: element i of `pointwise` is a pack of 8 columns.
template <DType type, class T>
struct Expand {
  static constexpr int unroll = 4;
  Stored<type> s;
  const std::uint8_t* x;
  T* y;
  RowOf packs;
  bool wide;
  i64 first;   ///< row of the matrix that y begins with
  template <int V>
  using Piece = Held<type>;
  template <int V>
  __device__ Held<type> load(i64 i) const {
    Held<type> h;
    packs(i, h.row, h.column);
    h.column *= 8, h.row += first;
    h.codes = read_codes(s, x, h.row, h.column, wide);
    h.scale = read_bits<Stored<type>::scale_bytes>(x + s.scale_at(h.row, h.column));
    return h;
  }
  template <int V>
  __device__ void store(i64, const Held<type>& h) const {
    T* to = y + (h.row - first) * s.columns + h.column;
    if constexpr (std::is_same_v<T, bf16>) {
      if (wide) return cuda::store<8>(to, expanded(h.codes, h.scale));
    }
    const float scale = value_of_scale<type>(h.scale);
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = value_of_code<type>(h.codes[j]) * scale;
    if (wide) return cuda::store<8>(to, v);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (h.column + j < s.columns) to[j] = narrowed<T>(v[j]);
  }
};

template <class T>
void expand(DType from, i64 rows, i64 columns, i64 first, i64 count, const std::uint8_t* x, T* y, cudaStream_t stream) {
  const i64 packs = (columns + 7) / 8, all = count * packs;
  const bool wide = columns % 8 == 0 && aligned({x, y});
  with_stored(from, rows, columns, [&]<DType type>(const Stored<type>& s) {
    pointwise(all, false, Expand<type, T>{s, x, y, RowOf::of(packs, all), wide, first}, stream, "dequantise");
  });
}

template <class T>
void run(const op::Dequantise& op, const Frame& f) {
  expand(op.from, op.rows, op.columns, 0, op.rows, f["x"].as<std::uint8_t>(), f["y"].as<T>(), f.stream());
}

}  // namespace

void forward(const op::Dequantise& op, const Frame& f) { op.to == DType::f32 ? run<float>(op, f) : run<bf16>(op, f); }
void backward(const op::Dequantise&, const Frame&) {}

void dequantise_rows(DType from, i64 rows, i64 columns, i64 first, i64 count, const void* x, bf16* y, cudaStream_t stream) {
  expand(from, rows, columns, first, count, static_cast<const std::uint8_t*>(x), y, stream);
}

std::string refusal(const op::Dequantise& op) {
  const bool from = op.from == DType::fp8 || op.from == DType::mxfp4 || op.from == DType::nvfp4 || op.from == DType::int8 || op.from == DType::int4;
  if (from && (op.to == DType::bf16 || op.to == DType::f32)) return {};
  return "reads fp8, mxfp4, nvfp4, int8 and int4 into bf16 and f32, not " + std::string(name_of(op.from)) + " into " + std::string(name_of(op.to));
}
std::int64_t scratch(const op::Dequantise&, Pass, Wants) { return 0; }

}  // namespace moeplan::cuda
