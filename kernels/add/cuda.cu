/// Residual sum on the GPU: y = a + s b;  da = dy,  db = s dy.
/// Mapping: a thread has two packs of 16 bytes of each operand in flight. Bytes at n = tokens x hidden: forward 6 n; backward 4 n where
/// scaled, otherwise both gradients are dy itself and a gradient that has its memory is not copied onto itself.

#include "kernels/add/op.hpp"
#include "kernels/base/pack.cuh"
#include "kernels/cuda_frame.hpp"

namespace moeplan::cuda {
namespace {

struct Sum {
  static constexpr int unroll = 2;
  const bf16 *a, *b;
  bf16* y;
  float scale;
  template <int V>
  struct Piece {
    Pack<bf16, V> a, b;
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const { return {cuda::load<V>(a + i), cuda::load<V>(b + i)}; }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const {
    float v[V];
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = fmaf(scale, p.b[j], p.a[j]);
    cuda::store<V>(y + i, v);
  }
};

/// da and db in one pass over dy; either may be null.
struct Gradients {
  static constexpr int unroll = 4;
  const bf16* dy;
  bf16 *da, *db;
  float scale;
  template <int V>
  struct Piece {
    Pack<bf16, V> dy;
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const { return {cuda::load<V>(dy + i)}; }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const {
    if (da != nullptr) cuda::store<V>(da + i, p.dy);
    if (db == nullptr) return;
    float v[V];
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = scale * p.dy[j];
    cuda::store<V>(db + i, v);
  }
};

}  // namespace

void forward(const op::Add& op, const Frame& f) {
  const Sum sum{f["a"].as<bf16>(), f["b"].as<bf16>(), f["y"].as<bf16>(), op.scaled ? static_cast<float>(op.scale) : 1.0f};
  pointwise(op.tokens * op.hidden, aligned({sum.a, sum.b, sum.y}), sum, f.stream(), "add forward");
}

void backward(const op::Add& op, const Frame& f) {
  Gradients g{f.d("y").as<bf16>(), f.d("a").as<bf16>(), f.d("b").as<bf16>(), op.scaled ? static_cast<float>(op.scale) : 1.0f};
  if (g.da == g.dy) g.da = nullptr;
  if (g.db == g.dy && g.scale == 1.0f) g.db = nullptr;
  if (g.da || g.db) pointwise(op.tokens * op.hidden, aligned({g.dy, g.da, g.db}), g, f.stream(), "add backward");
}

MOEPLAN_CUDA_TAKES_ALL(Add)

}  // namespace moeplan::cuda
