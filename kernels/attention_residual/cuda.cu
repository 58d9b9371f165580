/// Block attention residuals on the GPU: reference.cpp has the mathematics.
/// Mapping: wide rows go through a ring in shared memory (ring.cuh) where the streams fit there. Others: a group of threads owns a token
/// (kernels/base/rows.cuh). Forward: one pass over the streams with the softmax rescaled as in
/// attention, y = sum e^(s_i - m) v_i / sum e^(s_i - m), so that each stream is read once. Backward: the softmax couples the streams, so
/// a first pass takes dy . v_i and w . v_i of all of them and a second writes the gradients; it finds v_i in the second-level cache.
/// Bytes at n = tokens x hidden and k = blocks + 1 streams: forward 2 n (k + 1), backward 2 n (2 k + 1) + 8 tokens k.

#include "kernels/attention_residual/op.hpp"
#include "kernels/attention_residual/ring.cuh"
#include "kernels/base/rows.cuh"
#include "kernels/cuda_frame.hpp"

namespace moeplan::cuda {
namespace {

using mixing::Arguments;
using mixing::most_streams;

template <int V>
__device__ __forceinline__ void direction_at(const Arguments& a, i64 column, float (&w)[V]) {
  const auto norm = load<V, false>(a.norm + column), proj = load<V, false>(a.proj + column);
#pragma unroll
  for (int j = 0; j < V; ++j) w[j] = norm[j] * proj[j];
}

template <int V, int K>
__global__ void __launch_bounds__(most_row_threads) mix_forward(const __grid_constant__ Arguments a, int group) {
  __shared__ float shared[128];
  int turn = 0;
  const int lane = threadIdx.x % group, sub = threadIdx.x / group, rows = blockDim.x / group;
  const i64 row = static_cast<i64>(blockIdx.x) * rows + sub, at = row * a.width;
  const auto column = [&](int k) { return static_cast<i64>(lane + k * group) * V; };
  const auto inside = [&](int k) { return row < a.rows && column(k) < a.width; };
  const auto read = [&](int i, Pack<bf16, V>(&to)[K]) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k)) to[k] = load<V>(a.v[i] + at + column(k));
  };
  float y[K][V] = {}, most = -INFINITY, sum = 0;
  Pack<bf16, V> v[K], next[K];
  read(0, v);
  for (int i = 0; i < a.streams; ++i) {
    if (i + 1 < a.streams) read(i + 1, next);   // on its way while this one is reduced
    float sums[2] = {};                         // squares, and along w
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!inside(k)) continue;
      float w[V];
      direction_at<V>(a, column(k), w);
#pragma unroll
      for (int j = 0; j < V; ++j) sums[0] = fmaf(v[k][j], v[k][j], sums[0]), sums[1] = fmaf(w[j], v[k][j], sums[1]);
    }
    group_sum<2>(sums, group, shared, turn);
    const float r = rsqrtf(sums[0] / static_cast<float>(a.width) + a.epsilon), score = r * sums[1];
    const float higher = fmaxf(most, score), before = __expf(most - higher), now = __expf(score - higher);
    most = higher, sum = fmaf(sum, before, now);
    if (lane == 0 && row < a.rows) a.inverse_rms[row * a.streams + i] = r, a.mix[row * a.streams + i] = score;
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k))
#pragma unroll
        for (int j = 0; j < V; ++j) y[k][j] = fmaf(y[k][j], before, now * v[k][j]);
#pragma unroll
    for (int k = 0; k < K; ++k) v[k] = next[k];
  }
  if (row >= a.rows) return;
  const float scale = 1.0f / sum;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (!inside(k)) continue;
#pragma unroll
    for (int j = 0; j < V; ++j) y[k][j] *= scale;
    store<V>(a.y + at + column(k), y[k]);
  }
  if (lane == 0)   // the scores that this thread left there become the mix
    for (int i = 0; i < a.streams; ++i) a.mix[row * a.streams + i] = __expf(a.mix[row * a.streams + i] - most) * scale;
}

template <int V, int K, bool weight>
__global__ void __launch_bounds__(most_row_threads) mix_backward(const __grid_constant__ Arguments a, int group) {
  __shared__ float shared[128];
  __shared__ float dots[32][most_streams][2];   // of each group's token: dy . v_i, and w . v_i
  int turn = 0;
  float through[K][V] = {};                     // sum over tokens and streams of ds r v, of which dnorm and dproj are made
  const int lane = threadIdx.x % group, sub = threadIdx.x / group, rows = blockDim.x / group;
  for (i64 base = static_cast<i64>(blockIdx.x) * rows; base < a.rows; base += static_cast<i64>(gridDim.x) * rows) {
    const i64 row = base + sub, at = row * a.width;
    const auto column = [&](int k) { return static_cast<i64>(lane + k * group) * V; };
    const auto inside = [&](int k) { return row < a.rows && column(k) < a.width; };
    Pack<bf16, V> dy[K];
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k)) dy[k] = load<V>(a.dy + at + column(k));
    float mean = 0;
    for (int i = 0; i < a.streams; ++i) {
      float sums[2] = {};
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (!inside(k)) continue;
        const auto v = load<V, false>(a.v[i] + at + column(k));
        float w[V];
        direction_at<V>(a, column(k), w);
#pragma unroll
        for (int j = 0; j < V; ++j) sums[0] = fmaf(dy[k][j], v[j], sums[0]), sums[1] = fmaf(w[j], v[j], sums[1]);
      }
      group_sum<2>(sums, group, shared, turn);
      if (row < a.rows) mean = fmaf(a.mix[row * a.streams + i], sums[0], mean);
      if (lane == 0) dots[sub][i][0] = sums[0], dots[sub][i][1] = sums[1];
    }
    __syncthreads();
    for (int i = 0; i < a.streams; ++i) {
      if (!weight && a.dv[i] == nullptr) continue;
      const float p = row < a.rows ? a.mix[row * a.streams + i] : 0.0f, r = row < a.rows ? a.inverse_rms[row * a.streams + i] : 0.0f;
      const float ds = p * (dots[sub][i][0] - mean) * r, back = dots[sub][i][1] / static_cast<float>(a.width) * r * r;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (!inside(k)) continue;
        const auto v = load<V>(a.v[i] + at + column(k));
        if constexpr (weight)
#pragma unroll
          for (int j = 0; j < V; ++j) through[k][j] = fmaf(ds, v[j], through[k][j]);
        if (a.dv[i] == nullptr) continue;
        float w[V];
        direction_at<V>(a, column(k), w);
#pragma unroll
        for (int j = 0; j < V; ++j) w[j] = fmaf(p, dy[k][j], ds * (w[j] - v[j] * back));
        store<V>(a.dv[i] + at + column(k), w);
      }
    }
    __syncthreads();   // dots are the next token's
  }
  if constexpr (weight) write_partial<V, K>(through, a.partials + blockIdx.x * a.width, a.width, group);
}

std::string stream_name(int i) { return i == 0 ? "sum" : "block_" + std::to_string(i - 1); }

Arguments arguments(const op::AttentionResidual& op, const Frame& f) {
  Arguments a{};
  a.streams = static_cast<int>(op.blocks) + 1;
  for (int i = 0; i < a.streams; ++i) a.v[i] = f[stream_name(i)].as<bf16>(), a.dv[i] = f.d(stream_name(i)).as<bf16>();
  a.norm = f["norm"].as<bf16>(), a.proj = f["proj"].as<bf16>(), a.dy = f.d("y").as<bf16>(), a.y = f["y"].as<bf16>();
  a.mix = f["mix"].as<float>(), a.inverse_rms = f["inverse_rms"].as<float>(), a.partials = f.scratch<float>();
  a.rows = op.tokens, a.width = op.hidden, a.epsilon = static_cast<float>(op.epsilon);
  return a;
}
RowPlan plan_of(const op::AttentionResidual& op, const Arguments& a) {
  bool wide = op.hidden % 8 == 0 && aligned({a.norm, a.proj, a.dy, a.y});
  for (int i = 0; i < a.streams; ++i) wide = wide && aligned({a.v[i], a.dv[i]});
  RowPlan plan = row_plan(op.kind, op.hidden, wide);
  // `dots` has room for 32 tokens a block.
  while (plan.rows() > 32) plan.group *= 2;
  return plan;
}
std::string shape(const op::AttentionResidual& op) {
  return "tokens=" + std::to_string(op.tokens) + " hidden=" + std::to_string(op.hidden) + " blocks=" + std::to_string(op.blocks);
}

}  // namespace

void forward(const op::AttentionResidual& op, const Frame& f) {
  if (op.tokens == 0) return;
  const Arguments a = arguments(op, f);
  const RowPlan plan = plan_of(op, a);
  if (const auto planned = ring::plan(op.tokens, op.hidden, a.streams, plan.wide && plan.group > 32, true, f.device()); planned.blocks > 0) ring::queue(mixing::mix_through_ring<false, false>, planned, a, f.stream());
  else with_packs(plan, [&]<int V, int K>() { mix_forward<V, K><<<row_blocks(plan, op.tokens), plan.threads, 0, f.stream()>>>(a, plan.group); });
  kernels::check_launch("attention_residual forward", shape(op));
}

void backward(const op::AttentionResidual& op, const Frame& f) {
  const Arguments a = arguments(op, f);
  bf16 *dnorm = f.d("norm").as<bf16>(), *dproj = f.d("proj").as<bf16>();
  const bool weight = dnorm || dproj;
  unsigned blocks = 0;
  if (op.tokens > 0) {
    const RowPlan plan = plan_of(op, a);
    if (const auto planned = ring::plan(op.tokens, op.hidden, a.streams + 1, plan.wide && plan.group > 32, !weight, f.device()); planned.blocks > 0) {
      blocks = planned.blocks;
      ring::queue(weight ? mixing::mix_through_ring<true, true> : mixing::mix_through_ring<true, false>, planned, a, f.stream());
    } else {
      blocks = row_blocks(plan, op.tokens, weight);
      with_packs(plan, [&]<int V, int K>() {
        if (weight) mix_backward<V, K, true><<<blocks, plan.threads, plan.partial_bytes(), f.stream()>>>(a, plan.group);
        else mix_backward<V, K, false><<<blocks, plan.threads, 0, f.stream()>>>(a, plan.group);
      });
    }
    kernels::check_launch("attention_residual backward", shape(op));
  }
  if (dnorm) sum_partials(blocks, op.hidden, a.partials, dnorm, f.stream(), a.proj);
  if (dproj) sum_partials(blocks, op.hidden, a.partials, dproj, f.stream(), a.norm);
}

std::string refusal(const op::AttentionResidual&) { return {}; }
std::int64_t scratch(const op::AttentionResidual& op, Pass pass, Wants wants) {
  return pass == Pass::backward && wants.weight_grad && op.training == Training::full ? 4 * most_partials * op.hidden : 0;
}

}  // namespace moeplan::cuda
