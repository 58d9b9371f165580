/// Hyper-connection streams on the GPU: the row m times side by side;  dx = the sum of the streams' gradients, in their order.
/// Mapping: a thread owns 8 columns of x and writes, or reads, them in every stream. Bytes: 2 tokens hidden (m + 1) each way.

#include "kernels/base/pack.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/hyper_expand/op.hpp"

namespace moeplan::cuda {
namespace {

struct Open {
  static constexpr int unroll = 2;
  const bf16* x;
  bf16* streams;
  int count;
  RowOf rows;
  template <int V>
  struct Piece {
    Pack<bf16, V> x;
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const { return {cuda::load<V>(x + i)}; }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const {
    i64 row, column;
    rows(i, row, column);
    for (int m = 0; m < count; ++m) cuda::store<V>(streams + (row * count + m) * rows.width + column, p.x);
  }
};

struct Close {
  static constexpr int unroll = 2;
  const bf16* dstreams;
  bf16* dx;
  int count;
  RowOf rows;
  template <int V>
  struct Piece {
    float sum[V];
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const {
    i64 row, column;
    rows(i, row, column);
    Piece<V> p{};
#pragma unroll 4
    for (int m = 0; m < count; ++m) {
      const auto d = cuda::load<V>(dstreams + (row * count + m) * rows.width + column);
#pragma unroll
      for (int j = 0; j < V; ++j) p.sum[j] += d[j];
    }
    return p;
  }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const { cuda::store<V>(dx + i, p.sum); }
};

}  // namespace

void forward(const op::HyperExpand& op, const Frame& f) {
  const Open a{f["x"].as<bf16>(), f["streams"].as<bf16>(), static_cast<int>(op.streams), RowOf::of(op.hidden, op.tokens * op.hidden)};
  pointwise(op.tokens * op.hidden, op.hidden % 8 == 0 && aligned({a.x, a.streams}), a, f.stream(), "hyper_expand forward");
}

void backward(const op::HyperExpand& op, const Frame& f) {
  const Close a{f.d("streams").as<bf16>(), f.d("x").as<bf16>(), static_cast<int>(op.streams), RowOf::of(op.hidden, op.tokens * op.hidden)};
  if (a.dx) pointwise(op.tokens * op.hidden, op.hidden % 8 == 0 && aligned({a.dstreams, a.dx}), a, f.stream(), "hyper_expand backward");
}

MOEPLAN_CUDA_TAKES_ALL(HyperExpand)

}  // namespace moeplan::cuda
