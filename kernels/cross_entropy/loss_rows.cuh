#pragma once
/// What happens to the logits of one token between two products: a block owns the row.
///
/// The row arrives as fp32 dots x . W_v and is left, where gradients are made, as bf16 in its own memory: value j at byte 2 j. That is safe
/// segment by segment: a segment is read by the whole block before any of it is written, and what it overwrites lies at or before it.

#include "kernels/base/math.cuh"

namespace moeplan::cuda {

inline constexpr int loss_threads = 256, loss_each = 8, loss_segment = loss_threads * loss_each;

/// Constants of a loss, and the chunk at hand: rows [tokens, width], `first` the vocabulary's entry of column 0.
struct LossChunk {
  float* logits;                ///< [tokens, width]
  const bf16* bias;             ///< [width] or null
  const std::int32_t* labels;   ///< [tokens]
  const float* share;           ///< 1 / labelled tokens, 0 for none
  int width;
  i64 first, vocabulary;
  float scale, softcap, z_loss, smoothing;

  [[nodiscard]] __device__ float logit(i64 row, int c) const {
    const float dot = logits[row * width + c];
    const float z = (bias == nullptr ? dot : dot + widened(bias[c])) * scale;
    return softcap > 0 ? softcap * hyperbolic_tangent(z / softcap) : z;
  }
  [[nodiscard]] __device__ float cap_slope(float z) const { return softcap > 0 ? 1.0f - z / softcap * (z / softcap) : 1.0f; }
};

/// What the vocabulary has said of a token so far.
struct LossState {
  float *most, *sum, *label, *all;   ///< [tokens]: largest logit, sum of e^(z - most), the label's logit, sum of logits
  float* factor;                     ///< [tokens]: by how much sums over earlier entries shrink
};

struct MaxSum {
  float most, sum;
};
__device__ __forceinline__ MaxSum joined(MaxSum a, MaxSum b) {
  const float most = fmaxf(a.most, b.most);
  if (most == -INFINITY) return {most, 0};
  return {most, a.sum * __expf(a.most - most) + b.sum * __expf(b.most - most)};
}

/// Joins over the block, in one order; every thread gets the result.
__device__ __forceinline__ MaxSum joined_over_block(MaxSum mine, float& all, MaxSum* parts, float* all_parts) {
  for (int step = 16; step > 0; step /= 2) {
    mine = joined(mine, {__shfl_xor_sync(0xffffffffu, mine.most, step), __shfl_xor_sync(0xffffffffu, mine.sum, step)});
    all += __shfl_xor_sync(0xffffffffu, all, step);
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine, all_parts[threadIdx.x / 32] = all;
  __syncthreads();
  mine = parts[0], all = all_parts[0];
  for (int w = 1; w < loss_threads / 32; ++w) mine = joined(mine, parts[w]), all += all_parts[w];
  __syncthreads();
  return mine;
}

/// Walks the row segment by segment, replacing each value by bf16 f(column).
template <class F>
__device__ void rewrite_row(float* row, int width, const F& f) {
  auto* const out = reinterpret_cast<bf16*>(row);
  for (int base = 0; base < width; base += loss_segment) {
    float v[loss_each];
#pragma unroll
    for (int j = 0; j < loss_each; ++j)
      if (const int c = base + j * loss_threads + static_cast<int>(threadIdx.x); c < width) v[j] = f(c);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < loss_each; ++j)
      if (const int c = base + j * loss_threads + static_cast<int>(threadIdx.x); c < width) out[c] = narrowed<bf16>(v[j]);
    __syncthreads();
  }
}

/// Joins a chunk's logits into the tokens' state; with `weights` the row becomes e^(z - most) for the product with W.
inline __global__ void __launch_bounds__(loss_threads) join_logits(LossChunk c, LossState s, bool weights) {
  __shared__ MaxSum parts[loss_threads / 32];
  __shared__ float all_parts[loss_threads / 32];
  const i64 row = blockIdx.x;
  MaxSum mine{-INFINITY, 0};
  float all = 0;
  for (int v = static_cast<int>(threadIdx.x); v < c.width; v += loss_threads) {
    const float z = c.logit(row, v);
    mine = joined(mine, {z, 1});
    all += z;
  }
  const std::int64_t label = static_cast<std::int64_t>(c.labels[row]) - c.first;
  const float label_logit = label >= 0 && label < c.width && threadIdx.x == 0 ? c.logit(row, static_cast<int>(label)) : 0;
  const MaxSum chunk = joined_over_block(mine, all, parts, all_parts);
  const bool begins = c.first == 0;
  const MaxSum before = begins ? MaxSum{-INFINITY, 0} : MaxSum{s.most[row], s.sum[row]}, after = joined(before, chunk);
  __syncthreads();   // everyone has read the state
  if (threadIdx.x == 0) {
    s.most[row] = after.most, s.sum[row] = after.sum;
    s.factor[row] = begins ? 0 : __expf(before.most - after.most);
    s.all[row] = (begins ? 0 : s.all[row]) + all;
    if (begins || (label >= 0 && label < c.width)) s.label[row] = label_logit;   // 0 where no chunk has it: another part of the vocabulary
  }
  if (weights) rewrite_row(c.logits + row * c.width, c.width, [&](int v) { return __expf(c.logit(row, v) - after.most); });
}

/// The row becomes the gradient of its dots: scale (1 - (z/c)^2) g ((1 + 2 zeta lse) e^(z - lse) - (1 - eps) [v = y] - eps / V), g = dloss / n.
inline __global__ void __launch_bounds__(loss_threads) logits_to_gradient(LossChunk c, const float* lse, const float* dloss) {
  const i64 row = blockIdx.x;
  const std::int64_t label = static_cast<std::int64_t>(c.labels[row]) - c.first;
  const bool labelled = c.labels[row] >= 0;
  const float g = labelled ? (dloss == nullptr ? 1.0f : *dloss) * *c.share : 0, log_sum = lse[row];
  const float boost = 1 + 2 * c.z_loss * log_sum, flat = c.smoothing / static_cast<float>(c.vocabulary);
  rewrite_row(c.logits + row * c.width, c.width, [&](int v) {
    if (!labelled) return 0.0f;
    const float z = c.logit(row, v);
    return c.scale * c.cap_slope(z) * g * (boost * __expf(z - log_sum) - flat - (v == label ? 1 - c.smoothing : 0.0f));
  });
}

/// One block: share = 1 / labelled tokens.
inline __global__ void __launch_bounds__(loss_threads) labelled_share(int tokens, const std::int32_t* labels, float* share) {
  __shared__ int parts[loss_threads];
  int count = 0;
  for (int t = static_cast<int>(threadIdx.x); t < tokens; t += loss_threads) count += labels[t] >= 0;
  parts[threadIdx.x] = count;
  for (int half = loss_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *share = parts[0] == 0 ? 0.0f : 1.0f / static_cast<float>(parts[0]);
}

/// One block: adds the tokens' losses, writes their log-sum-exp.
inline __global__ void __launch_bounds__(loss_threads) close_tokens(int tokens, const std::int32_t* labels, LossState s, const float* share, float vocabulary, float z_loss, float smoothing, float* lse, float* loss, bool first) {
  __shared__ float parts[loss_threads];
  float sum = 0;
  for (int t = static_cast<int>(threadIdx.x); t < tokens; t += loss_threads) {
    const float l = s.most[t] + __logf(s.sum[t]);
    lse[t] = l;
    if (labels[t] >= 0) sum += (1 - smoothing) * (l - s.label[t]) + smoothing * (l - s.all[t] / vocabulary) + z_loss * l * l;
  }
  parts[threadIdx.x] = sum;
  for (int half = loss_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *loss = (first ? 0 : *loss) + *share * parts[0];
}

/// sums[t] *= factor[t]; rows whose factor is 1 are not touched.
inline __global__ void __launch_bounds__(loss_threads) shrink_rows(int hidden, const float* factor, float* sums) {
  const float f = factor[blockIdx.x];
  if (f == 1) return;
  float* const row = sums + static_cast<i64>(blockIdx.x) * hidden;
  for (int c = static_cast<int>(threadIdx.x); c < hidden; c += loss_threads) row[c] *= f;
}

/// dx_t = scale / n ((1 + 2 zeta lse) / sum sums_t - W_y), 0 without a label.
inline __global__ void __launch_bounds__(loss_threads) close_gradient(int hidden, i64 vocabulary, const std::int32_t* labels, LossState s, const float* lse, const float* share, float scale, float z_loss, const float* sums, const bf16* w, bf16* dx) {
  const i64 t = blockIdx.x;
  const bool labelled = labels[t] >= 0 && labels[t] < vocabulary;
  const float by = labelled ? (1 + 2 * z_loss * lse[t]) / s.sum[t] : 0, g = scale * *share;
  for (int c = static_cast<int>(threadIdx.x); c < hidden; c += loss_threads)
    dx[t * hidden + c] = narrowed<bf16>(labelled ? g * (by * sums[t * hidden + c] - widened(w[static_cast<i64>(labels[t]) * hidden + c])) : 0.0f);
}

/// to = bf16(scale from); with `by`, times *by.
template <class From>
__global__ void __launch_bounds__(loss_threads) scaled_cast(i64 n, const From* from, float scale, const float* by, bf16* to) {
  const float s = by == nullptr ? scale : scale * *by;
  for (i64 i = static_cast<i64>(blockIdx.x) * loss_threads + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * loss_threads) to[i] = narrowed<bf16>(s * widened(from[i]));
}

}  // namespace moeplan::cuda
