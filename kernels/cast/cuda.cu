/// Changes of type on the GPU, rounding to nearest even; equal types are a copy.
/// Mapping: a thread has 32 values in flight, four packs of 8 or eight of 4. Bytes: elements x (size of from + size of to).

#include "kernels/base/pack.cuh"
#include "kernels/cast/op.hpp"
#include "kernels/cuda_frame.hpp"

namespace moeplan::cuda {
namespace {

template <class From, class To>
struct Convert {
  static constexpr int pack = sizeof(To) == 4 ? 4 : 8, unroll = 32 / pack;
  const From* x;
  To* y;
  template <int V>
  struct Piece {
    Pack<From, V> x;
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const { return {cuda::load<V>(x + i)}; }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const {
    float v[V];
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = p.x[j];
    cuda::store<V>(y + i, v);
  }
};

template <class From, class To>
void convert(const Tensor& x, const Tensor& y, cudaStream_t stream) {
  if (!y || y.size() == 0) return;
  if constexpr (std::is_same_v<From, To>) {
    if (x.data != y.data)
      kernels::check(cudaMemcpyAsync(y.data, x.data, static_cast<std::size_t>(x.size()) * sizeof(From), cudaMemcpyDeviceToDevice, stream), "cast between equal types");
  } else {
    pointwise(x.size(), aligned({x.data, y.data}), Convert<From, To>{x.as<From>(), y.as<To>()}, stream, "cast");
  }
}

template <class From>
void convert_from(const Tensor& x, const Tensor& y, cudaStream_t stream) {
  if (y.dtype == DType::f32) convert<From, float>(x, y, stream);
  else if (y.dtype == DType::bf16) convert<From, bf16>(x, y, stream);
  else convert<From, f16>(x, y, stream);
}
void convert(const Tensor& x, const Tensor& y, cudaStream_t stream) {
  if (x.dtype == DType::f32) convert_from<float>(x, y, stream);
  else if (x.dtype == DType::bf16) convert_from<bf16>(x, y, stream);
  else convert_from<f16>(x, y, stream);
}

bool plain(DType type) { return type == DType::f32 || type == DType::bf16 || type == DType::f16; }

}  // namespace

void forward(const op::Cast&, const Frame& f) { convert(f["x"], f["y"], f.stream()); }
void backward(const op::Cast&, const Frame& f) { convert(f.d("y"), f.d("x"), f.stream()); }

std::string refusal(const op::Cast& op) {
  if (plain(op.from) && plain(op.to)) return {};
  return "changes between f32, bf16 and f16, not from " + std::string(name_of(op.from)) + " to " + std::string(name_of(op.to));
}
std::int64_t scratch(const op::Cast&, Pass, Wants) { return 0; }

}  // namespace moeplan::cuda
