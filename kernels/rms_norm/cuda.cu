/// RMSNorm, with the residual sum before it, on the GPU: reference.cpp has the mathematics; what is normalised is the stored (bf16) sum,
/// so that the backward sees what the forward saw.
/// Mapping: a group of threads owns a row in registers (kernels/base/rows.cuh); each byte is read once. Bytes at n = tokens x hidden:
/// forward 4 n (8 n with the residual), backward 6 n (8 n with dsum) + 4 tokens, at the memory's speed. Not counted: the partial rows of dw, at
/// most 264 x hidden fp32 written and read once.

#include "kernels/base/ring.cuh"
#include "kernels/base/rows.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/rms_norm/op.hpp"

namespace moeplan::cuda {
namespace {

struct Forward {
  const bf16 *x, *residual, *w;
  bf16 *y, *sum;
  float* inverse_rms;
  i64 rows, width;
  float offset, epsilon;
};

template <int V, int K>
__global__ void __launch_bounds__(most_row_threads) rms_forward(Forward a, int group) {
  __shared__ float shared[64];
  int turn = 0;
  const int lane = threadIdx.x % group, sub = threadIdx.x / group, rows = blockDim.x / group;
  for (i64 base = static_cast<i64>(blockIdx.x) * rows; base < a.rows; base += static_cast<i64>(gridDim.x) * rows) {
    const i64 row = base + sub, at = row * a.width;
    const auto column = [&](int k) { return static_cast<i64>(lane + k * group) * V; };
    const auto inside = [&](int k) { return row < a.rows && column(k) < a.width; };
    Pack<bf16, V> v[K], r[K];
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k)) v[k] = load<V>(a.x + at + column(k));
    if (a.residual != nullptr) {
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (inside(k)) r[k] = load<V>(a.residual + at + column(k));
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (!inside(k)) continue;
        float both[V];
#pragma unroll
        for (int j = 0; j < V; ++j) both[j] = v[k][j] + r[k][j];
        v[k] = Pack<bf16, V>::of(both);
        store<V>(a.sum + at + column(k), v[k]);
      }
    }
    float squares[1] = {};
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k))
#pragma unroll
        for (int j = 0; j < V; ++j) squares[0] = fmaf(v[k][j], v[k][j], squares[0]);
    group_sum<1>(squares, group, shared, turn);
    const float scale = rsqrtf(squares[0] / static_cast<float>(a.width) + a.epsilon);
    if (lane == 0 && row < a.rows) a.inverse_rms[row] = scale;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!inside(k)) continue;
      float y[V];
      if (a.w != nullptr) {
        const auto w = load<V, false>(a.w + column(k));
#pragma unroll
        for (int j = 0; j < V; ++j) y[j] = v[k][j] * scale * (w[j] + a.offset);
      } else {
#pragma unroll
        for (int j = 0; j < V; ++j) y[j] = v[k][j] * scale;
      }
      store<V>(a.y + at + column(k), y);
    }
  }
}

struct Backward {
  const bf16 *v, *w, *dy, *dsum;
  const float* inverse_rms;
  bf16 *dx, *dresidual;
  float* partials;
  i64 rows, width;
  float offset;
};

template <int V, int K, bool weight>
__global__ void __maxnreg__((row_registers<V, K>(weight ? 128 : 72, weight ? 64 : 40))) rms_backward(Backward a, int group) {
  __shared__ float shared[64];
  int turn = 0;
  float dw[K][V] = {};
  const int lane = threadIdx.x % group, sub = threadIdx.x / group, rows = blockDim.x / group;
  for (i64 base = static_cast<i64>(blockIdx.x) * rows; base < a.rows; base += static_cast<i64>(gridDim.x) * rows) {
    const i64 row = base + sub, at = row * a.width;
    const auto column = [&](int k) { return static_cast<i64>(lane + k * group) * V; };
    const auto inside = [&](int k) { return row < a.rows && column(k) < a.width; };
    Pack<bf16, V> v[K], dy[K];
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k)) v[k] = load<V>(a.v + at + column(k)), dy[k] = load<V>(a.dy + at + column(k));
    const float r = row < a.rows ? a.inverse_rms[row] : 0.0f;
    // w dy, read again below rather than held: w stays in the first-level cache.
    const auto scaled = [&](int k, float (&out)[V]) {
#pragma unroll
      for (int j = 0; j < V; ++j) out[j] = dy[k][j];
      if (a.w == nullptr) return;
      const auto w = load<V, false>(a.w + column(k));
#pragma unroll
      for (int j = 0; j < V; ++j) out[j] *= w[j] + a.offset;
    };
    float along[1] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!inside(k)) continue;
      float g[V];
      scaled(k, g);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        along[0] = fmaf(v[k][j], g[j], along[0]);
        if constexpr (weight) dw[k][j] = fmaf(dy[k][j] * r, v[k][j], dw[k][j]);
      }
    }
    if (a.dx == nullptr && a.dresidual == nullptr) continue;
    group_sum<1>(along, group, shared, turn);
    const float back = along[0] / static_cast<float>(a.width) * r * r;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!inside(k)) continue;
      float g[V];
      scaled(k, g);
#pragma unroll
      for (int j = 0; j < V; ++j) g[j] = r * (g[j] - v[k][j] * back);
      if (a.dsum != nullptr) {
        const auto more = load<V>(a.dsum + at + column(k));
#pragma unroll
        for (int j = 0; j < V; ++j) g[j] += more[j];
      }
      if (a.dx != nullptr) store<V>(a.dx + at + column(k), g);
      if (a.dresidual != nullptr) store<V>(a.dresidual + at + column(k), g);
    }
  }
  if constexpr (weight) write_partial<V, K>(dw, a.partials + blockIdx.x * a.width, a.width, group);
}

/// The same for wide rows with the weight's gradient, whose sums would leave too few rows in flight: rows come through a ring.
__global__ void __maxnreg__(72) rms_backward_ring(const __grid_constant__ Backward a, int slots) {
  extern __shared__ uint4 memory[];
  __shared__ float partial[2][1][ring::most_warps];
  ring::Ring rows(memory, slots, a.width);
  const int items = a.dsum != nullptr ? 3 : 2;
  i64 coming = blockIdx.x;   // row and item whose copy is started next
  int coming_item = 0;
  const auto start_copy = [&] {
    if (coming >= a.rows) return rows.start(nullptr);
    rows.start((coming_item == 0 ? a.v : coming_item == 1 ? a.dy : a.dsum) + coming * a.width);
    if (++coming_item == items) coming_item = 0, coming += gridDim.x;
  };
  for (int i = 0; i < slots; ++i) start_copy();

  float dw[ring::packs][8] = {};
  Pack<bf16, 8> w[ring::packs];
#pragma unroll
  for (int k = 0; k < ring::packs; ++k)
    if (rows.inside(k)) w[k] = weight_at<8>(a.w, rows.column(k));
  float r = blockIdx.x < a.rows ? a.inverse_rms[blockIdx.x] : 0.0f;
  int turn = 0;
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const i64 next = row + gridDim.x;
    const float next_r = next < a.rows ? a.inverse_rms[next] : 0.0f;
    rows.wait(items - 1);
    Pack<bf16, 8> v[ring::packs], dy[ring::packs], more[ring::packs];
#pragma unroll
    for (int k = 0; k < ring::packs; ++k) {
      if (!rows.inside(k)) continue;
      v[k] = rows.held(0, k), dy[k] = rows.held(1, k);
      if (a.dsum != nullptr) more[k] = rows.held(2, k);
    }
    rows.advance(items);
    float along[1] = {};
#pragma unroll
    for (int k = 0; k < ring::packs; ++k) {
      if (!rows.inside(k)) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        along[0] = fmaf(v[k][j], dy[k][j] * (w[k][j] + a.offset), along[0]);
        dw[k][j] = fmaf(dy[k][j] * r, v[k][j], dw[k][j]);
      }
    }
    for (int i = 0; i < items; ++i) start_copy();   // into the places that were just read
    if (a.dx != nullptr || a.dresidual != nullptr) {
      ring::block_sum<1>(along, partial, turn);
      const float back = along[0] / static_cast<float>(a.width) * r * r;
#pragma unroll
      for (int k = 0; k < ring::packs; ++k) {
        if (!rows.inside(k)) continue;
        float g[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) g[j] = r * fmaf(dy[k][j], w[k][j] + a.offset, -v[k][j] * back);
        if (a.dsum != nullptr)
#pragma unroll
          for (int j = 0; j < 8; ++j) g[j] += more[k][j];
        const i64 at = row * a.width + rows.column(k);
        if (a.dx != nullptr) store<8>(a.dx + at, g);
        if (a.dresidual != nullptr) store<8>(a.dresidual + at, g);
      }
    }
    r = next_r;
  }
  write_partial<8, ring::packs>(dw, a.partials + blockIdx.x * a.width, a.width, static_cast<int>(blockDim.x));
}

std::string shape(const op::RmsNorm& op) { return "tokens=" + std::to_string(op.tokens) + " hidden=" + std::to_string(op.hidden); }

}  // namespace

void forward(const op::RmsNorm& op, const Frame& f) {
  if (op.tokens == 0) return;
  const Forward a{f["x"].as<bf16>(), f["residual"].as<bf16>(), f["w"].as<bf16>(), f["y"].as<bf16>(), f["sum"].as<bf16>(), f["inverse_rms"].as<float>(),
                  op.tokens, op.hidden, op.unit_offset ? 1.0f : 0.0f, static_cast<float>(op.epsilon)};
  const RowPlan plan = row_plan(op.kind, op.hidden, op.hidden % 8 == 0 && aligned({a.x, a.residual, a.w, a.y, a.sum}));
  with_packs(plan, [&]<int V, int K>() { rms_forward<V, K><<<row_blocks(plan, op.tokens), plan.threads, 0, f.stream()>>>(a, plan.group); });
  kernels::check_launch("rms_norm forward", shape(op));
}

void backward(const op::RmsNorm& op, const Frame& f) {
  bf16* dw = f.d("w").as<bf16>();
  const bf16* v = (op.residual_add ? f["sum"] : f["x"]).as<bf16>();
  // dx and dresidual are the same numbers; one memory for both is written once.
  bf16 *dx = f.d("x").as<bf16>(), *dresidual = f.d("residual").as<bf16>();
  if (dresidual == dx) dresidual = nullptr;
  const Backward a{v, f["w"].as<bf16>(), f.d("y").as<bf16>(), f.d("sum").as<bf16>(), f["inverse_rms"].as<float>(), dx, dresidual, f.scratch<float>(),
                   op.tokens, op.hidden, op.unit_offset ? 1.0f : 0.0f};
  unsigned blocks = 0;
  if (op.tokens > 0) {
    RowPlan plan = row_plan(op.kind, op.hidden, op.hidden % 8 == 0 && aligned({a.v, a.w, a.dy, a.dsum, a.dx, a.dresidual}));
    if (dw) plan = with_column_sums(plan);
    const auto planned = dw ? ring::plan(op.tokens, op.hidden, a.dsum ? 3 : 2, plan.wide && plan.group > 32, true, f.device()) : ring::Plan{};
    blocks = planned.blocks > 0 ? planned.blocks : row_blocks(plan, op.tokens, dw != nullptr);
    if (planned.blocks > 0) ring::queue(rms_backward_ring, planned, a, f.stream());
    else with_packs(plan, [&]<int V, int K>() {
      if (dw) rms_backward<V, K, true><<<blocks, plan.threads, plan.partial_bytes(), f.stream()>>>(a, plan.group);
      else rms_backward<V, K, false><<<blocks, plan.threads, 0, f.stream()>>>(a, plan.group);
    });
    kernels::check_launch("rms_norm backward", shape(op));
  }
  if (dw) sum_partials(blocks, op.hidden, a.partials, dw, f.stream());
}

std::string refusal(const op::RmsNorm&) { return {}; }
std::int64_t scratch(const op::RmsNorm& op, Pass pass, Wants wants) {
  return pass == Pass::backward && wants.weight_grad && op.has_weight && op.training == Training::full ? 4 * most_partials * op.hidden : 0;
}

}  // namespace moeplan::cuda
