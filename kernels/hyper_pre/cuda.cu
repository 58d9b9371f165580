/// hyper_pre on the GPU: reference.cpp has the formulas. The products with fn are cuBLASLt's on tensor cores: fn (fp32)
/// is written as the sum of three bf16, which holds its 24 bits, so that X fn^T with sums in fp32 is as exact as in
/// fp32. The coefficients of a token and its mix are one block's work; chunks of tokens bound what the
/// product leaves between the two. Backward: a block finds dz of its token
/// (through the sigmoids and, with all its steps kept in shared memory, the Sinkhorn normalisation); dn = (dz scale) fn
/// is a product of two bf16 parts of dz with two of fn, written as bf16 where dX will be, and joined with what comes
/// through the mix:
///   dX_j = pre_j dy + r dn - X r^2 (sum_i dz_i scale_i raw_i) / width, for which no sum over the columns is needed;
///   dfn = (dz scale r)^T X of three bf16 parts.
/// Bytes at n = tokens x hidden, m streams: forward 2 n (m + 1), backward 2 n (5 m + 1).

#include <algorithm>

#include "kernels/base/pack.cuh"
#include "kernels/cuda.hpp"

namespace moeplan::cuda {
namespace {

using Op = op::HyperPre;
using op::HyperForm;
constexpr int threads = 256, warps = threads / 32, most_streams = 4,
              most_coefficients = (2 + most_streams) * most_streams, sum_slices = 64;
constexpr std::int64_t chunk_tokens = 4096;

struct Arguments {
  const bf16 *x, *dy;
  const float *base, *scale, *dpost, *dmixing;
  bf16 *y, *dx;
  float *post, *mixing, *raw, *inverse_rms;
  const float* product;  ///< of a chunk: [tokens, 3 C]
  float* dz;             ///< [tokens, C]
  bf16* dz_parts;        ///< [tokens, 3 C]: dz scale r in three parts
  bf16* dn_parts;        ///< [tokens, 3 C]: dz scale in parts high, low, high
  float* back;           ///< [tokens]: sum_i dz_i scale_i raw_i
  i64 hidden, first;     ///< first: token of the chunk
  int streams, coefficients, steps;
  float epsilon;
  HyperForm form;
};

__device__ __forceinline__ bf16 part_of(float v, int part) {
  const bf16 high = __float2bfloat16(v);
  if (part == 0) return high;
  const float rest = v - __bfloat162float(high);
  const bf16 middle = __float2bfloat16(rest);
  return part == 1 ? middle : __float2bfloat16(rest - __bfloat162float(middle));
}

/// out = the three parts of fn one after the other, each [C, width].
__global__ void __launch_bounds__(threads) split_weight(i64 n, const float* fn, bf16* out) {
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * threads)
#pragma unroll
    for (int p = 0; p < 3; ++p) out[p * n + i] = part_of(fn[i], p);
}
/// The right side of dn: fn's high, high and middle parts, for dz's high, low and high.
__global__ void __launch_bounds__(threads) split_weight_back(i64 n, const float* fn, bf16* out) {
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * threads)
    out[i] = out[n + i] = part_of(fn[i], 0), out[2 * n + i] = part_of(fn[i], 1);
}

__device__ __forceinline__ float block_sum(float v, float* part) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0;
#pragma unroll
  for (int w = 0; w < warps; ++w) v += part[w];
  __syncthreads();
  return v;
}

__device__ __forceinline__ float sigmoid_of(float z) { return 1 / (1 + expf(-z)); }
__device__ __forceinline__ int scale_of(const Arguments& a, int i) { return min(i / a.streams, 2); }
__device__ __forceinline__ float z_of(const Arguments& a, float raw, int i) {
  return a.base == nullptr ? raw : fmaf(raw, a.scale[scale_of(a, i)], a.base[i]);
}

/// Sum over a row (or column) of the m x m matrix whose entry i a lane holds.
__device__ __forceinline__ float line_sum(float v, int i, int m, bool row) {
  float sum = 0;
  for (int j = 0; j < m; ++j) sum += __shfl_sync(~0u, v, row ? i / m * m + j : j * m + i % m);
  return sum;
}

/// One block a token of the chunk: the sum of squares, the coefficients, y.
template <int V>
__global__ void __launch_bounds__(threads) mix(const __grid_constant__ Arguments a) {
  __shared__ float part[warps], pre[most_streams];
  const i64 t = a.first + blockIdx.x, width = a.streams * a.hidden;
  const int m = a.streams, lane = static_cast<int>(threadIdx.x);
  const bf16* const x = a.x + t * width;
  float squares = 0;
  for (i64 c = static_cast<i64>(threadIdx.x) * V; c < width; c += threads * V) {
    const auto v = load<V, false>(x + c);
#pragma unroll
    for (int e = 0; e < V; ++e) squares = fmaf(v[e], v[e], squares);
  }
  const float r = rsqrtf(block_sum(squares, part) / static_cast<float>(width) + a.epsilon);
  if (lane == 0) a.inverse_rms[t] = r;
  if (lane < a.coefficients) {
    const float* const product = a.product + static_cast<i64>(blockIdx.x) * 3 * a.coefficients;
    a.raw[t * a.coefficients + lane] =
        (product[2 * a.coefficients + lane] + product[a.coefficients + lane] + product[lane]) * r;
  }
  __syncthreads();  // the block's own writes to raw
  if (lane < m) {
    pre[lane] = sigmoid_of(z_of(a, a.raw[t * a.coefficients + lane], lane));
    if (a.form != HyperForm::head)
      a.post[t * m + lane] = 2 * sigmoid_of(z_of(a, a.raw[t * a.coefficients + m + lane], m + lane));
  }
  if (a.form == HyperForm::mhc && threadIdx.x < 32) {
    const int i = min(lane, m * m - 1);  // lanes past the matrix repeat its last entry
    float v = expf(z_of(a, a.raw[t * a.coefficients + 2 * m + i], 2 * m + i));
    for (int step = 0; step < 2 * a.steps; ++step) v /= line_sum(v, i, m, step % 2 == 0);
    if (lane < m * m) a.mixing[t * m * m + lane] = v;
  }
  __syncthreads();
  for (i64 c = static_cast<i64>(threadIdx.x) * V; c < a.hidden; c += threads * V) {
    float y[V] = {};
    for (int j = 0; j < m; ++j) {
      const auto v = load<V>(x + j * a.hidden + c);
#pragma unroll
      for (int e = 0; e < V; ++e) y[e] = fmaf(pre[j], v[e], y[e]);
    }
    store<V>(a.y + t * a.hidden + c, y);
  }
}

/// One block a token: dz, and what the products and the last pass read of it.
template <int V>
__global__ void __launch_bounds__(threads) through_coefficients(const __grid_constant__ Arguments a, int most_steps) {
  extern __shared__ float history[];  // [2 steps + 1][32]: the matrix before each normalisation and after the last
  __shared__ float part[warps], dots[most_streams], dz[most_coefficients];
  const i64 t = blockIdx.x, width = a.streams * a.hidden;
  const int m = a.streams, c_all = a.coefficients, lane = static_cast<int>(threadIdx.x);
  float mine[most_streams] = {};
  for (i64 c = static_cast<i64>(threadIdx.x) * V; c < a.hidden; c += threads * V) {
    const auto dy = load<V, false>(a.dy + t * a.hidden + c);
#pragma unroll
    for (int j = 0; j < most_streams; ++j) {
      if (j >= m) continue;
      const auto x = load<V, false>(a.x + t * width + j * a.hidden + c);
#pragma unroll
      for (int e = 0; e < V; ++e) mine[j] = fmaf(dy[e], x[e], mine[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < most_streams; ++j)
    if (j < m) {
      const float all = block_sum(mine[j], part);
      if (lane == 0) dots[j] = all;
    }
  if (lane < c_all) dz[lane] = 0;
  __syncthreads();
  const float* const raw = a.raw + t * c_all;
  if (lane < m) {
    const float pre = sigmoid_of(z_of(a, raw[lane], lane));
    dz[lane] = pre * (1 - pre) * dots[lane];
    if (a.dpost != nullptr) {
      const float post = sigmoid_of(z_of(a, raw[m + lane], m + lane));
      dz[m + lane] = 2 * post * (1 - post) * a.dpost[t * m + lane];
    }
  }
  if (a.dmixing != nullptr && threadIdx.x < 32) {
    const int i = min(lane, m * m - 1);
    float v = expf(z_of(a, raw[2 * m + i], 2 * m + i));
    const float first = v;
    history[lane] = v;
    for (int step = 0; step < most_steps; ++step)
      history[(step + 1) * 32 + lane] = v /= line_sum(v, i, m, step % 2 == 0);
    float d = a.dmixing[t * m * m + i];
    for (int step = most_steps - 1; step >= 0; --step) {
      const float before = history[step * 32 + lane], after = history[(step + 1) * 32 + lane];
      d = (d - line_sum(d * after, i, m, step % 2 == 0)) / line_sum(before, i, m, step % 2 == 0);
    }
    if (lane < m * m) dz[2 * m + lane] = d * first;
  }
  __syncthreads();
  if (lane < c_all) {
    const float scaled = dz[lane] * (a.base == nullptr ? 1.0f : a.scale[scale_of(a, lane)]), r = a.inverse_rms[t];
    a.dz[t * c_all + lane] = dz[lane];
    for (int p = 0; p < 3; ++p)
      a.dz_parts[(t * 3 + p) * c_all + lane] = part_of(scaled * r, p),
                                       a.dn_parts[(t * 3 + p) * c_all + lane] = part_of(scaled, p % 2);
  }
  if (lane == 0) {
    float back = 0;
    for (int i = 0; i < c_all; ++i)
      back = fmaf(dz[i] * (a.base == nullptr ? 1.0f : a.scale[scale_of(a, i)]), raw[i], back);
    a.back[t] = back;
  }
}

/// dx holds dn and becomes dX.
template <int V>
__global__ void __launch_bounds__(threads) join_gradient(const __grid_constant__ Arguments a) {
  const i64 t = blockIdx.x, width = a.streams * a.hidden;
  const float r = a.inverse_rms[t], along = r * r * a.back[t] / static_cast<float>(width);
  for (int j = 0; j < a.streams; ++j) {
    const float pre = sigmoid_of(z_of(a, a.raw[t * a.coefficients + j], j));
    for (i64 c = static_cast<i64>(threadIdx.x) * V; c < a.hidden; c += threads * V) {
      const i64 at = t * width + j * a.hidden + c;
      const auto dn = load<V>(a.dx + at), x = load<V>(a.x + at);
      const auto dy = load<V, false>(a.dy + t * a.hidden + c);
      float dx[V];
#pragma unroll
      for (int e = 0; e < V; ++e) dx[e] = fmaf(pre, dy[e], fmaf(r, dn[e], -along * x[e]));
      store<V>(a.dx + at, dx);
    }
  }
}

/// Blocks of slices; thread i < C has dbase_i, the C after it the terms of dscale.
__global__ void __launch_bounds__(64)
    sum_coefficients(i64 tokens, int c_all, const float* dz, const float* raw, float* parts) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= 2 * c_all) return;
  float sum = 0;
  for (i64 t = blockIdx.x; t < tokens; t += sum_slices)
    sum += i < c_all ? dz[t * c_all + i] : dz[t * c_all + i - c_all] * raw[t * c_all + i - c_all];
  parts[blockIdx.x * 2 * c_all + i] = sum;
}
__global__ void __launch_bounds__(64)
    close_coefficients(int streams, int c_all, const float* parts, float* dbase, float* dscale) {
  __shared__ float total[2 * most_coefficients];
  const int i = static_cast<int>(threadIdx.x);
  if (i < 2 * c_all) {
    float sum = 0;
    for (int s = 0; s < sum_slices; ++s) sum += parts[s * 2 * c_all + i];
    total[i] = sum;
    if (i < c_all && dbase != nullptr) dbase[i] = sum;
  }
  __syncthreads();
  const int scales = c_all == streams ? 1 : c_all == 2 * streams ? 2 : 3;
  if (i >= scales || dscale == nullptr) return;
  float sum = 0;
  for (int j = 0; j < c_all; ++j)
    if (min(j / streams, 2) == i) sum += total[c_all + j];
  dscale[i] = sum;
}

/// out = the sum of three parts, each n long.
__global__ void __launch_bounds__(threads) join_parts(i64 n, const float* parts, float* out) {
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * threads)
    out[i] = parts[2 * n + i] + parts[n + i] + parts[i];
}

__global__ void __launch_bounds__(threads) mean_streams(i64 n, i64 hidden, int streams, const bf16* x, bf16* y) {
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n;
       i += static_cast<i64>(gridDim.x) * threads) {
    float sum = 0;
    for (int j = 0; j < streams; ++j) sum += widened(x[(i / hidden * streams + j) * hidden + i % hidden]);
    y[i] = __float2bfloat16(sum / static_cast<float>(streams));
  }
}
__global__ void __launch_bounds__(threads) spread_mean(i64 n, i64 hidden, int streams, const bf16* dy, bf16* dx) {
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * threads)
    dx[i] = __float2bfloat16(widened(dy[i / hidden / streams * hidden + i % hidden]) / static_cast<float>(streams));
}

unsigned blocks_for(i64 n) { return static_cast<unsigned>(std::clamp<i64>((n + threads - 1) / threads, 1, 4096)); }
std::string shape(const Op& op) {
  return "tokens=" + std::to_string(op.tokens) + " hidden=" + std::to_string(op.hidden) +
         " streams=" + std::to_string(op.streams);
}

struct Scratch {
  bf16 *weight, *dz_parts, *dn_parts;
  float *product, *dz, *back, *sums, *dfn;
  std::int64_t bytes;
};
Scratch laid_out(const Op& op, Pass pass, Wants wants, char* base) {
  Scratch s{};
  const auto take = [&]<class T>(T*& at, std::int64_t count, bool wanted = true) {
    if (!wanted) return;
    at = base == nullptr ? nullptr : reinterpret_cast<T*>(base + s.bytes);
    s.bytes += aligned_bytes(count * static_cast<std::int64_t>(sizeof(T)));
  };
  const std::int64_t c = op.coefficients(), width = op.streams * op.hidden;
  const bool forward = pass == Pass::forward;
  take(s.weight, 3 * c * width, forward || wants.input_grad);
  take(s.product, 3 * c * std::min(op.tokens, chunk_tokens), forward);
  take(s.dz, c * op.tokens, !forward), take(s.dz_parts, 3 * c * op.tokens, !forward),
      take(s.dn_parts, 3 * c * op.tokens, !forward), take(s.back, op.tokens, !forward);
  take(s.sums, 2 * c * sum_slices, !forward && wants.weight_grad),
      take(s.dfn, 3 * c * width, !forward && wants.weight_grad);
  return s;
}

Arguments arguments(const Op& op, const Frame& f) {
  Arguments a{};
  a.x = f["streams"].as<bf16>(), a.dy = f.d("y").as<bf16>(), a.base = f["base"].as<float>(),
  a.scale = f["scale"].as<float>();
  a.dpost = f.d("post").as<float>(), a.dmixing = f.d("mixing").as<float>(), a.y = f["y"].as<bf16>(),
  a.dx = f.d("streams").as<bf16>();
  a.post = f["post"].as<float>(), a.mixing = f["mixing"].as<float>(), a.raw = f["raw"].as<float>(),
  a.inverse_rms = f["inverse_rms"].as<float>();
  a.hidden = op.hidden, a.streams = static_cast<int>(op.streams), a.coefficients = static_cast<int>(op.coefficients()),
  a.steps = static_cast<int>(op.sinkhorn_steps);
  a.epsilon = static_cast<float>(op.epsilon), a.form = op.form;
  return a;
}
bool wide(const Arguments& a) { return a.hidden % 8 == 0 && aligned({a.x, a.dy, a.y, a.dx}); }

}  // namespace

void forward(const Op& op, const Frame& f) {
  if (op.tokens == 0) return;
  const std::int64_t c = op.coefficients(), width = op.streams * op.hidden;
  if (op.form == HyperForm::mean) {
    mean_streams<<<blocks_for(op.tokens * op.hidden), threads, 0, f.stream()>>>(
        op.tokens * op.hidden, op.hidden, static_cast<int>(op.streams), f["streams"].as<bf16>(), f["y"].as<bf16>());
    return kernels::check_launch("hyper_pre mean", shape(op));
  }
  const Scratch s = laid_out(op, Pass::forward, {}, f.scratch<char>());
  Arguments a = arguments(op, f);
  a.product = s.product;
  split_weight<<<blocks_for(c * width), threads, 0, f.stream()>>>(c * width, f["fn"].as<float>(), s.weight);
  for (a.first = 0; a.first < op.tokens; a.first += chunk_tokens) {
    const std::int64_t n = std::min(chunk_tokens, op.tokens - a.first);
    f.products().multiply({a.x + a.first * width, n, width}, {s.weight, 3 * c, width, true}, s.product, DType::f32, 1,
                          0, f.stream());
    (wide(a) ? mix<8> : mix<1>)<<<static_cast<unsigned>(n), threads, 0, f.stream()>>>(a);
  }
  kernels::check_launch("hyper_pre forward", shape(op));
}

void backward(const Op& op, const Frame& f) {
  const std::int64_t c = op.coefficients(), width = op.streams * op.hidden;
  float *dfn = f.d("fn").as<float>(), *dbase = f.d("base").as<float>(), *dscale = f.d("scale").as<float>();
  if (op.tokens == 0) {
    for (const char* name : {"fn", "base", "scale"})
      if (const Tensor d = f.d(name))
        kernels::check(cudaMemsetAsync(d.data, 0, static_cast<std::size_t>(4 * d.size()), f.stream()),
                       "hyper_pre backward without tokens");
    return;
  }
  if (op.form == HyperForm::mean) {
    spread_mean<<<blocks_for(op.tokens * width), threads, 0, f.stream()>>>(
        op.tokens * width, op.hidden, static_cast<int>(op.streams), f.d("y").as<bf16>(), f.d("streams").as<bf16>());
    return kernels::check_launch("hyper_pre mean backward", shape(op));
  }
  Arguments a = arguments(op, f);
  const bool weights = dfn != nullptr || dbase != nullptr || dscale != nullptr;
  const Scratch s = laid_out(op, Pass::backward, {a.dx != nullptr, weights}, f.scratch<char>());
  a.dz = s.dz, a.dz_parts = s.dz_parts, a.dn_parts = s.dn_parts, a.back = s.back;
  const auto blocks = static_cast<unsigned>(op.tokens);
  const int steps = a.dmixing == nullptr ? 0 : 2 * a.steps;
  (wide(a) ? through_coefficients<8>
           : through_coefficients<1>)<<<blocks, threads, static_cast<std::size_t>(128 * (steps + 1)), f.stream()>>>(
      a, steps);
  if (a.dx != nullptr) {
    split_weight_back<<<blocks_for(c * width), threads, 0, f.stream()>>>(c * width, f["fn"].as<float>(), s.weight);
    f.products().multiply({s.dn_parts, op.tokens, 3 * c}, {s.weight, 3 * c, width}, a.dx, DType::bf16, 1, 0,
                          f.stream());
    (wide(a) ? join_gradient<8> : join_gradient<1>)<<<blocks, threads, 0, f.stream()>>>(a);
  }
  if (dfn != nullptr) {
    f.products().multiply({s.dz_parts, op.tokens, 3 * c, true}, {a.x, op.tokens, width}, s.dfn, DType::f32, 1, 0,
                          f.stream());
    join_parts<<<blocks_for(c * width), threads, 0, f.stream()>>>(c * width, s.dfn, dfn);
  }
  if (dbase != nullptr || dscale != nullptr) {
    sum_coefficients<<<sum_slices, 64, 0, f.stream()>>>(op.tokens, a.coefficients, s.dz, a.raw, s.sums);
    close_coefficients<<<1, 64, 0, f.stream()>>>(a.streams, a.coefficients, s.sums, dbase, dscale);
  }
  kernels::check_launch("hyper_pre backward", shape(op));
}

std::string refusal(const Op& op) {
  if (op.form != HyperForm::mean && (op.streams < 1 || op.streams > most_streams))
    return std::to_string(op.streams) + " streams; its CUDA kernels take up to " + std::to_string(most_streams);
  if (op.sinkhorn_steps > 180) return std::to_string(op.sinkhorn_steps) + " Sinkhorn steps; its CUDA kernels keep 180";
  if (op.tokens > (std::int64_t{1} << 31) - 1) return std::to_string(op.tokens) + " tokens; up to 2147483647";
  return {};
}

std::int64_t scratch(const Op& op, Pass pass, Wants wants) {
  return op.tokens == 0 || op.form == HyperForm::mean || (pass == Pass::backward && wants == Wants{false, false})
             ? 0
             : laid_out(op, pass, wants, nullptr).bytes;
}

}  // namespace moeplan::cuda
