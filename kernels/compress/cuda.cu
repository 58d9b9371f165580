/// compress on the GPU: reference.cpp has the formulas. A thread owns one column of one row of y and mixes its entries,
/// `ratio` of its own run and with `overlap` as many of the run before, under a running maximum. Bytes: every entry of
/// kv and gate once forward; backward they are read again and both gradients written. With `overlap` a token's
/// first-half columns belong to the run after it and its second-half columns to its own, so that every gradient has one
/// owner; entries of no whole run get zero. The position bias sums over the runs in slices, then over the slices in
/// order.

#include "kernels/base/pack.cuh"
#include "kernels/cuda.hpp"

namespace moeplan::cuda {
namespace {

using Op = op::Compress;
constexpr int threads = 256, slices = 64;

struct Arguments {
  const bf16 *kv, *gate, *dy;
  const float* ape;
  bf16 *y, *dkv, *dgate;
  float* parts;  ///< [slices, ratio, columns]: sums of dgate for the position bias
  i64 rows, tokens, length, width, ratio, columns, runs;  ///< runs: of a whole sequence
  bool overlap;
};

/// A row of y: its run in its sequence, and the run's first token.
struct Run {
  i64 number, begin;
};
__device__ __forceinline__ Run run_of(const Arguments& a, i64 row) {
  if (a.runs == 0) return {row, row * a.ratio};  // one sequence, shorter than `length`
  const i64 sequence = row / a.runs, number = row - sequence * a.runs;
  return {number, sequence * a.length + number * a.ratio};
}

/// Calls f(token, column, place) for each entry of a row's column.
template <class F>
__device__ __forceinline__ void each_entry(const Arguments& a, const Run& run, i64 c, F&& f) {
  for (i64 i = 0; i < a.ratio; ++i) {
    if (a.overlap && run.number > 0) f(run.begin - a.ratio + i, c, i);
    f(run.begin + i, a.overlap ? a.width + c : c, i);
  }
}

struct Mix {
  float most, sum, value;  ///< of the gates: largest, sum of e^(g - most); the mix of kv
};
__device__ __forceinline__ Mix mix_of(const Arguments& a, const Run& run, i64 c) {
  Mix m{-INFINITY, 0, 0};
  each_entry(a, run, c, [&](i64 token, i64 column, i64 place) {
    const float kv = widened(a.kv[token * a.columns + column]);
    if (a.gate == nullptr) {
      m.most = 0, m.sum += 1, m.value += kv;
      return;
    }
    const float g = widened(a.gate[token * a.columns + column]) + a.ape[place * a.columns + column],
                most = fmaxf(m.most, g), shrink = __expf(m.most - most), w = __expf(g - most);
    m = {most, fmaf(m.sum, shrink, w), fmaf(m.value, shrink, w * kv)};
  });
  m.value /= m.sum;
  return m;
}

__global__ void __launch_bounds__(threads) compress_rows(const __grid_constant__ Arguments a) {
  const i64 n = a.rows * a.width;
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * threads)
    a.y[i] = __float2bfloat16(mix_of(a, run_of(a, i / a.width), i % a.width).value);
}

/// Blocks (columns, slices); a thread takes every 64th row of its column.
__global__ void __launch_bounds__(threads) compress_backward(const __grid_constant__ Arguments a) {
  const i64 c = static_cast<i64>(blockIdx.x) * threads + threadIdx.x;
  if (c >= a.width) return;
  float* const parts = a.parts == nullptr ? nullptr : a.parts + blockIdx.y * a.ratio * a.columns;
  for (i64 row = blockIdx.y; row < a.rows; row += slices) {
    const Run run = run_of(a, row);
    const float dy = widened(a.dy[row * a.width + c]);
    const Mix m = a.gate != nullptr ? mix_of(a, run, c)
                                    : Mix{0, static_cast<float>(a.ratio * (a.overlap && run.number > 0 ? 2 : 1)), 0};
    each_entry(a, run, c, [&](i64 token, i64 column, i64 place) {
      const i64 at = token * a.columns + column;
      const float p =
          (a.gate == nullptr ? 1.0f : __expf(widened(a.gate[at]) + a.ape[place * a.columns + column] - m.most)) / m.sum;
      if (a.dkv != nullptr) a.dkv[at] = __float2bfloat16(p * dy);
      if (a.gate == nullptr) return;
      const float d = p * dy * (widened(a.kv[at]) - m.value);
      if (a.dgate != nullptr) a.dgate[at] = __float2bfloat16(d);
      if (parts != nullptr) parts[place * a.columns + column] += d;  // this thread's own
    });
  }
}

__global__ void __launch_bounds__(threads) sum_parts(i64 n, const float* parts, float* out) {
  const i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
  for (int s = 0; s < slices; ++s) sum += parts[s * n + i];
  out[i] = sum;
}

Arguments arguments(const Op& op, const Frame& f) {
  return {f["kv"].as<bf16>(),
          f["gate"].as<bf16>(),
          f.d("y").as<bf16>(),
          f["ape"].as<float>(),
          f["y"].as<bf16>(),
          f.d("kv").as<bf16>(),
          f.d("gate").as<bf16>(),
          nullptr,
          op.rows(),
          op.tokens,
          op.sequence_length,
          op.width,
          op.ratio,
          (op.overlap ? 2 : 1) * op.width,
          op.tokens < op.sequence_length ? 0 : op.sequence_length / op.ratio,
          op.overlap};
}
std::string shape(const Op& op) {
  return "tokens=" + std::to_string(op.tokens) + " width=" + std::to_string(op.width) +
         " ratio=" + std::to_string(op.ratio);
}
std::int64_t bias_elements(const Op& op) { return op.ratio * (op.overlap ? 2 : 1) * op.width; }
void clear(void* data, std::int64_t bytes, cudaStream_t stream) {
  if (data != nullptr && bytes > 0)
    kernels::check(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), stream), "clear a gradient of compress");
}

}  // namespace

void forward(const Op& op, const Frame& f) {
  const Arguments a = arguments(op, f);
  if (a.rows == 0) return;
  compress_rows<<<static_cast<unsigned>(std::min<i64>((a.rows * a.width + threads - 1) / threads, 1 << 20)), threads, 0,
                  f.stream()>>>(a);
  kernels::check_launch("compress forward", shape(op));
}

void backward(const Op& op, const Frame& f) {
  Arguments a = arguments(op, f);
  float* const dape = f.d("ape").as<float>();
  clear(a.dkv, 2 * op.tokens * a.columns, f.stream());  // entries of no whole run
  clear(a.dgate, 2 * op.tokens * a.columns, f.stream());
  if (a.rows == 0) return clear(dape, 4 * bias_elements(op), f.stream());
  if (dape != nullptr) a.parts = f.scratch<float>(), clear(a.parts, 4 * slices * bias_elements(op), f.stream());
  compress_backward<<<dim3(static_cast<unsigned>((a.width + threads - 1) / threads), slices), threads, 0, f.stream()>>>(
      a);
  if (dape != nullptr)
    sum_parts<<<static_cast<unsigned>((bias_elements(op) + threads - 1) / threads), threads, 0, f.stream()>>>(
        bias_elements(op), a.parts, dape);
  kernels::check_launch("compress backward", shape(op));
}

std::string refusal(const Op& op) {
  if (op.width > (std::int64_t{1} << 30)) return std::to_string(op.width) + " columns; its CUDA kernels count to 2^30";
  return {};
}

/// Sums of slices for the position bias.
std::int64_t scratch(const Op& op, Pass pass, Wants wants) {
  return pass == Pass::backward && wants.weight_grad && op.gated && op.training == Training::full
             ? 4 * slices * bias_elements(op)
             : 0;
}

}  // namespace moeplan::cuda
