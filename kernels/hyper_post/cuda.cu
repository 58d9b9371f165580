/// hyper_post on the GPU: X'_i = sum_j M_ij X_j + post_i out (M the identity without mixing);  dX_j = sum_i M_ij dX'_i,
/// dout = sum_i post_i dX'_i, dpost_i = dX'_i . out, dM_ij = dX'_i . X_j. A block a token: every stream's pack of 8
/// columns is read once, and the m^2 + m coefficients come from shared memory. The backward's dot products are summed
/// by warps, then in the order of the warps. Bytes at n = tokens x hidden, m streams: forward 2 n (2 m + 1), backward 2
/// n (3 m + 2).

#include "kernels/base/pack.cuh"
#include "kernels/cuda.hpp"

namespace moeplan::cuda {
namespace {

using Op = op::HyperPost;
constexpr int threads = 256, warps = threads / 32;

struct Arguments {
  const bf16 *x, *out, *dy;
  const float *post, *mixing;
  bf16 *y, *dx, *dout;
  float *dpost, *dmixing;
  i64 hidden;
};

/// M and post of a token in shared memory: M[i * m + j], then post[i].
template <int m>
__device__ __forceinline__ void coefficients(const Arguments& a, float* to) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < m * m)
    to[i] = a.mixing != nullptr ? a.mixing[static_cast<i64>(blockIdx.x) * m * m + i] : (i / m == i % m ? 1.0f : 0.0f);
  if (i < m) to[m * m + i] = a.post[static_cast<i64>(blockIdx.x) * m + i];
  __syncthreads();
}

template <int m, int V>
__global__ void __launch_bounds__(threads) mix(const __grid_constant__ Arguments a) {
  __shared__ float k[m * m + m];
  coefficients<m>(a, k);
  const i64 row = static_cast<i64>(blockIdx.x) * m * a.hidden;
  for (i64 c = static_cast<i64>(threadIdx.x) * V; c < a.hidden; c += threads * V) {
    Pack<bf16, V> x[m];
#pragma unroll
    for (int j = 0; j < m; ++j) x[j] = load<V>(a.x + row + j * a.hidden + c);
    const auto out = load<V>(a.out + blockIdx.x * a.hidden + c);
#pragma unroll
    for (int i = 0; i < m; ++i) {
      float y[V];
#pragma unroll
      for (int e = 0; e < V; ++e) {
        y[e] = k[m * m + i] * out[e];
#pragma unroll
        for (int j = 0; j < m; ++j) y[e] = fmaf(k[i * m + j], x[j][e], y[e]);
      }
      store<V>(a.y + row + i * a.hidden + c, y);
    }
  }
}

template <int m, int V>
__global__ void __launch_bounds__(threads) mix_backward(const __grid_constant__ Arguments a) {
  __shared__ float k[m * m + m], part[warps][m * m + m];
  coefficients<m>(a, k);
  const i64 row = static_cast<i64>(blockIdx.x) * m * a.hidden;
  float dots[m * m + m] = {};  // as the coefficients
  for (i64 c = static_cast<i64>(threadIdx.x) * V; c < a.hidden; c += threads * V) {
    Pack<bf16, V> dy[m];
#pragma unroll
    for (int i = 0; i < m; ++i) dy[i] = load<V>(a.dy + row + i * a.hidden + c);
    const auto out = load<V>(a.out + blockIdx.x * a.hidden + c);
    float dout[V] = {};
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int e = 0; e < V; ++e)
        dots[m * m + i] = fmaf(dy[i][e], out[e], dots[m * m + i]), dout[e] = fmaf(k[m * m + i], dy[i][e], dout[e]);
    if (a.dout != nullptr) store<V>(a.dout + blockIdx.x * a.hidden + c, dout);
#pragma unroll
    for (int j = 0; j < m; ++j) {
      float dx[V] = {};
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int e = 0; e < V; ++e) dx[e] = fmaf(k[i * m + j], dy[i][e], dx[e]);
      if (a.mixing != nullptr) {
        const auto x = load<V>(a.x + row + j * a.hidden + c);
#pragma unroll
        for (int i = 0; i < m; ++i)
#pragma unroll
          for (int e = 0; e < V; ++e) dots[i * m + j] = fmaf(dy[i][e], x[e], dots[i * m + j]);
      }
      if (a.dx != nullptr) store<V>(a.dx + row + j * a.hidden + c, dx);
    }
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < m * m + m; ++i) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) dots[i] += __shfl_xor_sync(~0u, dots[i], step);
    if (lane == 0) part[warp][i] = dots[i];
  }
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i >= m * m + m) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < warps; ++w) sum += part[w][i];
  if (i >= m * m && a.dpost != nullptr) a.dpost[static_cast<i64>(blockIdx.x) * m + i - m * m] = sum;
  if (i < m * m && a.dmixing != nullptr) a.dmixing[static_cast<i64>(blockIdx.x) * m * m + i] = sum;
}

template <class F>
void with_streams(std::int64_t streams, F&& f) {
  switch (streams) {
    case 2:
      return f.template operator()<2>();
    case 3:
      return f.template operator()<3>();
    default:
      return f.template operator()<4>();
  }
}

Arguments arguments(const Op& op, const Frame& f) {
  return {f["streams"].as<bf16>(),
          f["out"].as<bf16>(),
          f.d("y").as<bf16>(),
          f["post"].as<float>(),
          f["mixing"].as<float>(),
          f["y"].as<bf16>(),
          f.d("streams").as<bf16>(),
          f.d("out").as<bf16>(),
          f.d("post").as<float>(),
          f.d("mixing").as<float>(),
          op.hidden};
}
bool wide(const Arguments& a) { return a.hidden % 8 == 0 && aligned({a.x, a.out, a.dy, a.y, a.dx, a.dout}); }
std::string shape(const Op& op) {
  return "tokens=" + std::to_string(op.tokens) + " hidden=" + std::to_string(op.hidden) +
         " streams=" + std::to_string(op.streams);
}

}  // namespace

void forward(const Op& op, const Frame& f) {
  if (op.tokens == 0) return;
  const Arguments a = arguments(op, f);
  with_streams(op.streams, [&]<int m>() {
    (wide(a) ? mix<m, 8> : mix<m, 1>)<<<static_cast<unsigned>(op.tokens), threads, 0, f.stream()>>>(a);
  });
  kernels::check_launch("hyper_post forward", shape(op));
}

void backward(const Op& op, const Frame& f) {
  if (op.tokens == 0) return;
  const Arguments a = arguments(op, f);
  with_streams(op.streams, [&]<int m>() {
    (wide(a) ? mix_backward<m, 8>
             : mix_backward<m, 1>)<<<static_cast<unsigned>(op.tokens), threads, 0, f.stream()>>>(a);
  });
  kernels::check_launch("hyper_post backward", shape(op));
}

std::string refusal(const Op& op) {
  if (op.streams < 2 || op.streams > 4) return std::to_string(op.streams) + " streams; its CUDA kernels take 2 to 4";
  if (op.tokens > (std::int64_t{1} << 31) - 1) return std::to_string(op.tokens) + " tokens; up to 2147483647";
  return {};
}
std::int64_t scratch(const Op&, Pass, Wants) { return 0; }

}  // namespace moeplan::cuda
