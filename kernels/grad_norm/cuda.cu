/// Sum of squares on the GPU. Eight squares are added in fp32 and these in fp64, in a fixed order: each thread its packs, then each block its
/// threads, then one block all blocks. Mapping: a persistent grid, four packs of a thread in flight. Bytes: the gradients once.

#include "kernels/base/pack.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/grad_norm/op.hpp"

namespace moeplan::cuda {
namespace {

constexpr int threads = 256, most_blocks = 1056;   // eight a multiprocessor of an H200

/// Sum over the block, for thread 0.
__device__ __forceinline__ double block_sum(double v) {
  __shared__ double warps[threads / 32];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < threads / 32; ++w) sum += warps[w];
  return sum;
}

template <int V, class T>
__global__ void __launch_bounds__(threads) square_sums(i64 elements, const T* gradient, double* sums) {
  constexpr int ahead = 4;
  const i64 packs = elements / V, stride = static_cast<i64>(gridDim.x) * threads, first = static_cast<i64>(blockIdx.x) * threads + threadIdx.x;
  double sum = 0;
  for (i64 p = first; p < packs; p += ahead * stride) {
    Pack<T, V> v[ahead];
#pragma unroll
    for (int u = 0; u < ahead; ++u)
      if (p + u * stride < packs) v[u] = load<V>(gradient + (p + u * stride) * V);
#pragma unroll
    for (int u = 0; u < ahead; ++u) {
      if (p + u * stride >= packs) continue;
      float squares = 0;
#pragma unroll
      for (int j = 0; j < V; ++j) squares = fmaf(v[u][j], v[u][j], squares);
      sum += squares;
    }
  }
  if (const i64 rest = packs * V + first; rest < elements) {   // V > 1: fewer than V of them
    const double v = widened(gradient[rest]);
    sum += v * v;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(threads) add_up(int blocks, const double* sums, float* out) {
  double sum = 0;
  for (int i = threadIdx.x; i < blocks; i += threads) sum += sums[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *out = static_cast<float>(sum);
}

template <class T>
void run(const op::GradNorm& op, const Frame& f) {
  const T* gradient = f["gradient"].as<T>();
  const bool wide = aligned({gradient});
  const i64 packs = wide ? op.elements / 8 : op.elements;
  const int blocks = static_cast<int>(std::min<i64>(most_blocks, packs / threads + 1));
  if (wide) square_sums<8><<<blocks, threads, 0, f.stream()>>>(op.elements, gradient, f.scratch<double>());
  else square_sums<1><<<blocks, threads, 0, f.stream()>>>(op.elements, gradient, f.scratch<double>());
  kernels::check_launch("grad_norm", "elements=" + std::to_string(op.elements));
  add_up<<<1, threads, 0, f.stream()>>>(blocks, f.scratch<double>(), f["sum_of_squares"].as<float>());
  kernels::check_launch("grad_norm: sum of blocks", "elements=" + std::to_string(op.elements));
}

}  // namespace

void forward(const op::GradNorm& op, const Frame& f) { op.gradient == DType::f32 ? run<float>(op, f) : run<bf16>(op, f); }
void backward(const op::GradNorm&, const Frame&) {}

std::string refusal(const op::GradNorm& op) {
  return op.gradient == DType::f32 || op.gradient == DType::bf16 ? std::string() : "reads gradients of f32 or bf16, not " + std::string(name_of(op.gradient));
}
std::int64_t scratch(const op::GradNorm&, Pass pass, Wants) { return pass == Pass::forward ? 8 * most_blocks : 0; }

}  // namespace moeplan::cuda
