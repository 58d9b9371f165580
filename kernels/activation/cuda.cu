/// y = f(x) on the GPU;  dx = dy f'(x).
/// Mapping: a thread has four packs of 16 bytes in flight; the function is chosen once a pack. Bytes at n = tokens x width: forward 4 n
/// (6 n into f32), backward 6 n (8 n).

#include "kernels/activation/op.hpp"
#include "kernels/base/math.cuh"
#include "kernels/cuda_frame.hpp"

namespace moeplan::cuda {
namespace {

/// f at V values; the switch stays outside of the loop over them.
template <int V>
__device__ __forceinline__ void evaluate(op::Function function, const Pack<bf16, V>& x, float (&value)[V], float (&slope)[V]) {
  const auto each = [&](auto f) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const Dual d = f(x[j]);
      value[j] = d.value, slope[j] = d.slope;
    }
  };
  switch (function) {
    case op::Function::silu: each([](float v) { return silu_dual(v); }); break;
    case op::Function::gelu: each([](float v) { return gelu_dual(v); }); break;
    case op::Function::relu2: each([](float v) { return relu2_dual(v); }); break;
    case op::Function::sigmoid: each([](float v) { return sigmoid_dual(v); }); break;
    case op::Function::tanh: each([](float v) { return tanh_dual(v); }); break;
  }
}

template <class Y>
struct Apply {
  static constexpr int pack = sizeof(Y) == 4 ? 4 : 8, unroll = 32 / pack;
  const bf16* x;
  Y* y;
  op::Function function;
  template <int V>
  struct Piece {
    Pack<bf16, V> x;
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const { return {cuda::load<V>(x + i)}; }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const {
    float value[V], slope[V];
    evaluate<V>(function, p.x, value, slope);
    cuda::store<V>(y + i, value);
  }
};

template <class Y>
struct Derive {
  static constexpr int unroll = 2;
  const bf16* x;
  const Y* dy;
  bf16* dx;
  op::Function function;
  template <int V>
  struct Piece {
    Pack<bf16, V> x;
    Pack<Y, V> dy;
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const { return {cuda::load<V>(x + i), cuda::load<V>(dy + i)}; }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const {
    float value[V], slope[V];
    evaluate<V>(function, p.x, value, slope);
#pragma unroll
    for (int j = 0; j < V; ++j) slope[j] *= p.dy[j];
    cuda::store<V>(dx + i, slope);
  }
};

template <class Y>
void apply(const op::Activate& op, const Frame& f) {
  const Apply<Y> a{f["x"].as<bf16>(), f["y"].as<Y>(), op.function};
  pointwise(op.tokens * op.width, aligned({a.x, a.y}), a, f.stream(), "activation forward");
}
template <class Y>
void derive(const op::Activate& op, const Frame& f) {
  const Derive<Y> d{f["x"].as<bf16>(), f.d("y").as<Y>(), f.d("x").as<bf16>(), op.function};
  if (d.dx) pointwise(op.tokens * op.width, aligned({d.x, d.dy, d.dx}), d, f.stream(), "activation backward");
}

}  // namespace

void forward(const op::Activate& op, const Frame& f) { op.output == DType::f32 ? apply<float>(op, f) : apply<bf16>(op, f); }
void backward(const op::Activate& op, const Frame& f) { op.output == DType::f32 ? derive<float>(op, f) : derive<bf16>(op, f); }

std::string refusal(const op::Activate& op) {
  return op.output == DType::f32 || op.output == DType::bf16 ? std::string() : "writes bf16 or f32, not " + std::string(name_of(op.output));
}
std::int64_t scratch(const op::Activate&, Pass, Wants) { return 0; }

}  // namespace moeplan::cuda
