/// LayerNorm on the GPU: reference.cpp has the mathematics; mean and variance come from one reduction of the differences to a
/// value of the row (the forms of Chan et al. 1983 with a shift near the mean, which keeps what the plain sum of squares would cancel).
/// Mapping: a group of threads owns a row in registers (kernels/base/rows.cuh); each byte is read once. Bytes at n = tokens x hidden:
/// forward 4 n, backward 6 n, and 8 tokens, at the memory's speed. Partial rows of dw and db: at most 2 x 264 x hidden fp32.

#include "kernels/base/ring.cuh"
#include "kernels/base/rows.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/layer_norm/op.hpp"

namespace moeplan::cuda {
namespace {

struct Arguments {
  const bf16 *x, *w, *b, *dy;
  bf16 *y, *dx;
  float *mean, *inverse_std, *partials;
  i64 rows, width;
  float epsilon;
};

template <int V, int K>
__global__ void __maxnreg__((row_registers<V, K>(72, 40))) layer_forward(Arguments a, int group) {
  __shared__ float shared[128];
  int turn = 0;
  const int lane = threadIdx.x % group, sub = threadIdx.x / group, rows = blockDim.x / group;
  for (i64 base = static_cast<i64>(blockIdx.x) * rows; base < a.rows; base += static_cast<i64>(gridDim.x) * rows) {
    const i64 row = base + sub, at = row * a.width;
    const auto column = [&](int k) { return static_cast<i64>(lane + k * group) * V; };
    const auto inside = [&](int k) { return row < a.rows && column(k) < a.width; };
    Pack<bf16, V> x[K];
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k)) x[k] = load<V>(a.x + at + column(k));
    // The middle one of three of the row's values, so that one far outlier is not taken.
    float near = 0;
    if (row < a.rows) {
      const float first = widened(a.x[at]), half = widened(a.x[at + a.width / 2]), last = widened(a.x[at + a.width - 1]);
      near = fmaxf(fminf(first, half), fminf(fmaxf(first, half), last));
    }
    float sums[2] = {};   // of the differences to it, and of their squares
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k))
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const float difference = x[k][j] - near;
          sums[0] += difference, sums[1] = fmaf(difference, difference, sums[1]);
        }
    group_sum<2>(sums, group, shared, turn);
    const float off = sums[0] / static_cast<float>(a.width), mean = near + off;
    const float r = rsqrtf(fmaxf(sums[1] / static_cast<float>(a.width) - off * off, 0.0f) + a.epsilon);
    if (lane == 0 && row < a.rows) a.mean[row] = mean, a.inverse_std[row] = r;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!inside(k)) continue;
      const auto w = load<V, false>(a.w + column(k));
      float y[V];
#pragma unroll
      for (int j = 0; j < V; ++j) y[j] = (x[k][j] - mean) * r * w[j];
      if (a.b != nullptr) {
        const auto b = load<V, false>(a.b + column(k));
#pragma unroll
        for (int j = 0; j < V; ++j) y[j] += b[j];
      }
      store<V>(a.y + at + column(k), y);
    }
  }
}

template <int V, int K, bool weight>
__global__ void __maxnreg__((row_registers<V, K>(weight ? 128 : 72, weight ? 64 : 40))) layer_backward(Arguments a, int group) {
  __shared__ float shared[128];
  int turn = 0;
  float dw[K][V] = {}, db[K][V] = {};
  const int lane = threadIdx.x % group, sub = threadIdx.x / group, rows = blockDim.x / group;
  for (i64 base = static_cast<i64>(blockIdx.x) * rows; base < a.rows; base += static_cast<i64>(gridDim.x) * rows) {
    const i64 row = base + sub, at = row * a.width;
    const auto column = [&](int k) { return static_cast<i64>(lane + k * group) * V; };
    const auto inside = [&](int k) { return row < a.rows && column(k) < a.width; };
    Pack<bf16, V> x[K], dy[K];
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k)) x[k] = load<V>(a.x + at + column(k)), dy[k] = load<V>(a.dy + at + column(k));
    const float mean = row < a.rows ? a.mean[row] : 0.0f, r = row < a.rows ? a.inverse_std[row] : 0.0f;
    float sums[2] = {};   // of w dy, and of n w dy
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!inside(k)) continue;
      const auto w = weight_at<V>(a.w, column(k));
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float n = (x[k][j] - mean) * r, g = w[j] * dy[k][j];
        sums[0] += g, sums[1] = fmaf(n, g, sums[1]);
        if constexpr (weight) dw[k][j] = fmaf(dy[k][j], n, dw[k][j]), db[k][j] += dy[k][j];
      }
    }
    if (a.dx == nullptr) continue;
    group_sum<2>(sums, group, shared, turn);
    const float sum = sums[0] / static_cast<float>(a.width), along = sums[1] / static_cast<float>(a.width);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!inside(k)) continue;
      const auto w = weight_at<V>(a.w, column(k));
      float dx[V];
#pragma unroll
      for (int j = 0; j < V; ++j) dx[j] = r * (w[j] * dy[k][j] - sum - (x[k][j] - mean) * r * along);
      store<V>(a.dx + at + column(k), dx);
    }
  }
  if constexpr (weight) {
    write_partial<V, K>(dw, a.partials + blockIdx.x * a.width, a.width, group);
    write_partial<V, K>(db, a.partials + (most_partials + blockIdx.x) * a.width, a.width, group);
  }
}

/// The same for wide rows with the weights' gradients, whose sums would leave too few rows in flight: rows come through a ring.
__global__ void __maxnreg__(128) layer_backward_ring(const __grid_constant__ Arguments a, int slots) {
  extern __shared__ uint4 memory[];
  __shared__ float partial[2][2][ring::most_warps];
  ring::Ring rows(memory, slots, a.width);
  i64 coming = blockIdx.x;   // row whose copy is started next; x, then dy
  bool dy_next = false;
  const auto start_copy = [&] {
    if (coming >= a.rows) return rows.start(nullptr);
    rows.start((dy_next ? a.dy : a.x) + coming * a.width);
    if (dy_next) coming += gridDim.x;
    dy_next = !dy_next;
  };
  for (int i = 0; i < slots; ++i) start_copy();
  float dw[ring::packs][8] = {}, db[ring::packs][8] = {};
  Pack<bf16, 8> w[ring::packs];
#pragma unroll
  for (int k = 0; k < ring::packs; ++k)
    if (rows.inside(k)) w[k] = weight_at<8>(a.w, rows.column(k));
  float mean = a.mean[blockIdx.x], r = a.inverse_std[blockIdx.x];
  int turn = 0;
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const i64 next = min(row + gridDim.x, a.rows - 1);
    const float next_mean = a.mean[next], next_r = a.inverse_std[next];
    rows.wait(1);
    float n[ring::packs][8], g[ring::packs][8], sums[2] = {};   // of g = w dy, and of n g
#pragma unroll
    for (int k = 0; k < ring::packs; ++k) {
      if (!rows.inside(k)) continue;
      const auto x = rows.held(0, k), dy = rows.held(1, k);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        n[k][j] = (x[j] - mean) * r, g[k][j] = w[k][j] * dy[j];
        sums[0] += g[k][j], sums[1] = fmaf(n[k][j], g[k][j], sums[1]);
        dw[k][j] = fmaf(dy[j], n[k][j], dw[k][j]), db[k][j] += dy[j];
      }
    }
    rows.advance(2);
    start_copy(), start_copy();   // into the places that were just read
    if (a.dx != nullptr) {
      ring::block_sum<2>(sums, partial, turn);
      const float sum = r * sums[0] / static_cast<float>(a.width), along = r * sums[1] / static_cast<float>(a.width);
#pragma unroll
      for (int k = 0; k < ring::packs; ++k) {
        if (!rows.inside(k)) continue;
        float dx[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) dx[j] = fmaf(g[k][j], r, fmaf(-n[k][j], along, -sum));
        store<8>(a.dx + row * a.width + rows.column(k), dx);
      }
    }
    mean = next_mean, r = next_r;
  }
  write_partial<8, ring::packs>(dw, a.partials + blockIdx.x * a.width, a.width, static_cast<int>(blockDim.x));
  write_partial<8, ring::packs>(db, a.partials + (most_partials + blockIdx.x) * a.width, a.width, static_cast<int>(blockDim.x));
}

Arguments arguments(const op::LayerNorm& op, const Frame& f) {
  return {f["x"].as<bf16>(), f["w"].as<bf16>(), f["b"].as<bf16>(), f.d("y").as<bf16>(), f["y"].as<bf16>(), f.d("x").as<bf16>(), f["mean"].as<float>(),
          f["inverse_std"].as<float>(), f.scratch<float>(), op.tokens, op.hidden, static_cast<float>(op.epsilon)};
}
RowPlan plan_of(const op::LayerNorm& op, const Arguments& a) {
  return row_plan(op.kind, op.hidden, op.hidden % 8 == 0 && aligned({a.x, a.w, a.b, a.dy, a.y, a.dx}));
}
std::string shape(const op::LayerNorm& op) { return "tokens=" + std::to_string(op.tokens) + " hidden=" + std::to_string(op.hidden); }

}  // namespace

void forward(const op::LayerNorm& op, const Frame& f) {
  if (op.tokens == 0) return;
  const Arguments a = arguments(op, f);
  const RowPlan plan = plan_of(op, a);
  with_packs(plan, [&]<int V, int K>() { layer_forward<V, K><<<row_blocks(plan, op.tokens), plan.threads, 0, f.stream()>>>(a, plan.group); });
  kernels::check_launch("layer_norm forward", shape(op));
}

void backward(const op::LayerNorm& op, const Frame& f) {
  const Arguments a = arguments(op, f);
  bf16 *dw = f.d("w").as<bf16>(), *db = f.d("b").as<bf16>();
  const bool weight = dw || db;
  unsigned blocks = 0;
  if (op.tokens > 0) {
    const RowPlan plan = weight ? with_column_sums(plan_of(op, a)) : plan_of(op, a);
    const auto planned = weight ? ring::plan(op.tokens, op.hidden, 2, plan.wide && plan.group > 32, false, f.device()) : ring::Plan{};
    blocks = planned.blocks > 0 ? planned.blocks : row_blocks(plan, op.tokens, weight);
    if (planned.blocks > 0) ring::queue(layer_backward_ring, planned, a, f.stream());
    else with_packs(plan, [&]<int V, int K>() {
      if (weight) layer_backward<V, K, true><<<blocks, plan.threads, plan.partial_bytes(), f.stream()>>>(a, plan.group);
      else layer_backward<V, K, false><<<blocks, plan.threads, 0, f.stream()>>>(a, plan.group);
    });
    kernels::check_launch("layer_norm backward", shape(op));
  }
  if (dw) sum_partials(blocks, op.hidden, a.partials, dw, f.stream());
  if (db) sum_partials(blocks, op.hidden, a.partials + most_partials * op.hidden, db, f.stream());
}

std::string refusal(const op::LayerNorm&) { return {}; }
std::int64_t scratch(const op::LayerNorm& op, Pass pass, Wants wants) {
  return pass == Pass::backward && wants.weight_grad && op.training == Training::full ? 8 * most_partials * op.hidden : 0;
}

}  // namespace moeplan::cuda
