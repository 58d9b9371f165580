/// RMSNorm with an output gate on the GPU: reference.cpp has the mathematics. Gate first, the gated value is normalised unrounded.
/// Mapping: a group of threads owns one (row, part of the row) in registers (kernels/base/rows.cuh), blockIdx.y is the part; each byte is
/// read once. Bytes at n = tokens x hidden: forward 6 n, backward 10 n, and 4 tokens x groups, at the memory's speed.

#include "kernels/base/math.cuh"
#include "kernels/base/ring.cuh"
#include "kernels/base/rows.cuh"
#include "kernels/cuda_frame.hpp"

namespace moeplan::cuda {
namespace {

struct Arguments {
  const bf16 *x, *gate, *w, *dy;
  bf16 *y, *dx, *dgate;
  float *inverse_rms, *partials;
  i64 rows, hidden, width;
  op::GateFunction function;
  bool gate_first;
  float epsilon;
};

template <int V, int K>
__global__ void __maxnreg__((row_registers<V, K>(72, 40))) gated_forward(Arguments a, int group) {
  __shared__ float shared[64];
  int turn = 0;
  const int lane = threadIdx.x % group, sub = threadIdx.x / group, rows = blockDim.x / group;
  const i64 part = blockIdx.y * a.width;
  for (i64 base = static_cast<i64>(blockIdx.x) * rows; base < a.rows; base += static_cast<i64>(gridDim.x) * rows) {
    const i64 row = base + sub, at = row * a.hidden + part;
    const auto column = [&](int k) { return static_cast<i64>(lane + k * group) * V; };
    const auto inside = [&](int k) { return row < a.rows && column(k) < a.width; };
    Pack<bf16, V> x[K], gate[K];
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k)) x[k] = load<V>(a.x + at + column(k)), gate[k] = load<V>(a.gate + at + column(k));
    float squares[1] = {}, product[K][V];   // x f(g), taken once
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k))
#pragma unroll
        for (int j = 0; j < V; ++j) {
          product[k][j] = x[k][j] * gate_dual(a.function, gate[k][j]).value;
          const float v = a.gate_first ? product[k][j] : x[k][j];
          squares[0] = fmaf(v, v, squares[0]);
        }
    group_sum<1>(squares, group, shared, turn);
    const float r = rsqrtf(squares[0] / static_cast<float>(a.width) + a.epsilon);
    if (lane == 0 && row < a.rows) a.inverse_rms[row * gridDim.y + blockIdx.y] = r;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!inside(k)) continue;
      const auto w = load<V, false>(a.w + part + column(k));
      float y[V];
#pragma unroll
      for (int j = 0; j < V; ++j) y[j] = product[k][j] * r * w[j];
      store<V>(a.y + at + column(k), y);
    }
  }
}

/// The same for wide rows of one group through a ring, so that the arithmetic of a row covers the loads of the next.
__global__ void __maxnreg__(72) gated_forward_ring(const __grid_constant__ Arguments a, int slots) {
  extern __shared__ uint4 memory[];
  __shared__ float partial[2][1][ring::most_warps];
  ring::Ring rows(memory, slots, a.width);
  i64 coming = blockIdx.x;   // row whose copy is started next; x, then the gate
  bool gate_next = false;
  const auto start_copy = [&] {
    if (coming >= a.rows) return rows.start(nullptr);
    rows.start((gate_next ? a.gate : a.x) + coming * a.width);
    if (gate_next) coming += gridDim.x;
    gate_next = !gate_next;
  };
  for (int i = 0; i < slots; ++i) start_copy();
  Pack<bf16, 8> w[ring::packs];
#pragma unroll
  for (int k = 0; k < ring::packs; ++k)
    if (rows.inside(k)) w[k] = load<8, false>(a.w + rows.column(k));
  int turn = 0;
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
    rows.wait(1);
    float product[ring::packs][8], squares[1] = {};
#pragma unroll
    for (int k = 0; k < ring::packs; ++k) {
      if (!rows.inside(k)) continue;
      const auto x = rows.held(0, k), gate = rows.held(1, k);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        product[k][j] = x[j] * gate_dual(a.function, gate[j]).value;
        const float v = a.gate_first ? product[k][j] : x[j];
        squares[0] = fmaf(v, v, squares[0]);
      }
    }
    rows.advance(2);
    start_copy(), start_copy();   // into the places that were just read
    ring::block_sum<1>(squares, partial, turn);
    const float r = rsqrtf(squares[0] / static_cast<float>(a.width) + a.epsilon);
    if (threadIdx.x == 0) a.inverse_rms[row] = r;
#pragma unroll
    for (int k = 0; k < ring::packs; ++k) {
      if (!rows.inside(k)) continue;
      float y[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = product[k][j] * r * w[k][j];
      store<8>(a.y + row * a.width + rows.column(k), y);
    }
  }
}

template <int V, int K, bool weight>
__global__ void __maxnreg__((row_registers<V, K>(weight ? 128 : 96, 64))) gated_backward(Arguments a, int group) {
  __shared__ float shared[64];
  int turn = 0;
  float dw[K][V] = {};
  const int lane = threadIdx.x % group, sub = threadIdx.x / group, rows = blockDim.x / group;
  const i64 part = blockIdx.y * a.width;
  for (i64 base = static_cast<i64>(blockIdx.x) * rows; base < a.rows; base += static_cast<i64>(gridDim.x) * rows) {
    const i64 row = base + sub, at = row * a.hidden + part;
    const auto column = [&](int k) { return static_cast<i64>(lane + k * group) * V; };
    const auto inside = [&](int k) { return row < a.rows && column(k) < a.width; };
    Pack<bf16, V> x[K], gate[K], dy[K];
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (inside(k)) x[k] = load<V>(a.x + at + column(k)), gate[k] = load<V>(a.gate + at + column(k)), dy[k] = load<V>(a.dy + at + column(k));
    const float r = row < a.rows ? a.inverse_rms[row * gridDim.y + blockIdx.y] : 0.0f;
    // v n f(g) = x dy f(g) in both orders: what is normalised, times the gradient that arrives behind the norm.
    float along[1] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!inside(k)) continue;
      const auto w = weight_at<V>(a.w, part + column(k));
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float product = x[k][j] * dy[k][j] * gate_dual(a.function, gate[k][j]).value;
        along[0] = fmaf(product, w[j], along[0]);
        if constexpr (weight) dw[k][j] = fmaf(product, r, dw[k][j]);
      }
    }
    if (a.dx == nullptr && a.dgate == nullptr) continue;
    group_sum<1>(along, group, shared, turn);
    const float back = along[0] / static_cast<float>(a.width) * r * r;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!inside(k)) continue;
      const auto w = weight_at<V>(a.w, part + column(k));
      float dx[V], dgate[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const Dual g = gate_dual(a.function, gate[k][j]);
        const float v = a.gate_first ? x[k][j] * g.value : x[k][j], n = a.gate_first ? dy[k][j] : dy[k][j] * g.value;
        const float dv = r * (w[j] * n - v * back);
        dx[j] = a.gate_first ? dv * g.value : dv;
        dgate[j] = g.slope * x[k][j] * (a.gate_first ? dv : dy[k][j] * r * w[j]);
      }
      if (a.dx != nullptr) store<V>(a.dx + at + column(k), dx);
      if (a.dgate != nullptr) store<V>(a.dgate + at + column(k), dgate);
    }
  }
  if constexpr (weight) write_partial<V, K>(dw, a.partials + blockIdx.x * a.hidden + part, a.width, group);
}

/// The same for wide rows of one group through a ring; x, the gate and dy are read from it twice.
template <bool weight>
__global__ void __maxnreg__(72) gated_backward_ring(const __grid_constant__ Arguments a, int slots) {
  extern __shared__ uint4 memory[];
  __shared__ float partial[2][1][ring::most_warps];
  ring::Ring rows(memory, slots, a.width);
  i64 coming = blockIdx.x;   // row and item whose copy is started next
  int coming_item = 0;
  const auto start_copy = [&] {
    if (coming >= a.rows) return rows.start(nullptr);
    rows.start((coming_item == 0 ? a.x : coming_item == 1 ? a.gate : a.dy) + coming * a.width);
    if (++coming_item == 3) coming_item = 0, coming += gridDim.x;
  };
  for (int i = 0; i < slots; ++i) start_copy();
  float dw[ring::packs][8] = {};
  Pack<bf16, 8> w[ring::packs];
#pragma unroll
  for (int k = 0; k < ring::packs; ++k)
    if (rows.inside(k)) w[k] = weight_at<8>(a.w, rows.column(k));
  float r = a.inverse_rms[blockIdx.x];
  int turn = 0;
  for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float next_r = a.inverse_rms[min(row + gridDim.x, a.rows - 1)];
    rows.wait(2);
    float along[1] = {};
#pragma unroll
    for (int k = 0; k < ring::packs; ++k) {
      if (!rows.inside(k)) continue;
      const auto x = rows.held(0, k), gate = rows.held(1, k), dy = rows.held(2, k);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float product = x[j] * dy[j] * gate_dual(a.function, gate[j]).value;
        along[0] = fmaf(product, w[k][j], along[0]);
        if constexpr (weight) dw[k][j] = fmaf(product, r, dw[k][j]);
      }
    }
    if (a.dx != nullptr || a.dgate != nullptr) {
      ring::block_sum<1>(along, partial, turn);
      const float back = along[0] / static_cast<float>(a.width) * r * r;
#pragma unroll
      for (int k = 0; k < ring::packs; ++k) {
        if (!rows.inside(k)) continue;
        const auto x = rows.held(0, k), gate = rows.held(1, k), dy = rows.held(2, k);
        float dx[8], dgate[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const Dual g = gate_dual(a.function, gate[j]);
          const float v = a.gate_first ? x[j] * g.value : x[j], n = a.gate_first ? dy[j] : dy[j] * g.value;
          const float dv = r * (w[k][j] * n - v * back);
          dx[j] = a.gate_first ? dv * g.value : dv;
          dgate[j] = g.slope * x[j] * (a.gate_first ? dv : dy[j] * r * w[k][j]);
        }
        const i64 at = row * a.width + rows.column(k);
        if (a.dx != nullptr) store<8>(a.dx + at, dx);
        if (a.dgate != nullptr) store<8>(a.dgate + at, dgate);
      }
    }
    rows.advance(3);
    start_copy(), start_copy(), start_copy();   // into the places that were just read
    r = next_r;
  }
  if constexpr (weight) write_partial<8, ring::packs>(dw, a.partials + blockIdx.x * a.width, a.width, static_cast<int>(blockDim.x));
}

Arguments arguments(const op::GatedRmsNorm& op, const Frame& f) {
  return {f["x"].as<bf16>(), f["gate"].as<bf16>(), f["w"].as<bf16>(), f.d("y").as<bf16>(), f["y"].as<bf16>(), f.d("x").as<bf16>(), f.d("gate").as<bf16>(),
          f["inverse_rms"].as<float>(), f.scratch<float>(), op.tokens, op.hidden, op.hidden / op.groups, op.gate, op.gate_first, static_cast<float>(op.epsilon)};
}
RowPlan plan_of(const op::GatedRmsNorm& op, const Arguments& a) {
  return row_plan(op.kind, a.width, a.width % 8 == 0 && aligned({a.x, a.gate, a.w, a.dy, a.y, a.dx, a.dgate}));
}
std::string shape(const op::GatedRmsNorm& op) {
  return "tokens=" + std::to_string(op.tokens) + " hidden=" + std::to_string(op.hidden) + " groups=" + std::to_string(op.groups);
}

}  // namespace

void forward(const op::GatedRmsNorm& op, const Frame& f) {
  if (op.tokens == 0) return;
  const Arguments a = arguments(op, f);
  const RowPlan plan = plan_of(op, a);
  const dim3 blocks(row_blocks(plan, op.tokens), static_cast<unsigned>(op.groups));
  if (const auto planned = ring::plan(op.tokens, op.hidden, 2, op.groups == 1 && plan.wide && plan.group > 32, true, f.device()); planned.blocks > 0) ring::queue(gated_forward_ring, planned, a, f.stream());
  else with_packs(plan, [&]<int V, int K>() { gated_forward<V, K><<<blocks, plan.threads, 0, f.stream()>>>(a, plan.group); });
  kernels::check_launch("gated_rms_norm forward", shape(op));
}

void backward(const op::GatedRmsNorm& op, const Frame& f) {
  const Arguments a = arguments(op, f);
  bf16* dw = f.d("w").as<bf16>();
  unsigned rows = 0;
  if (op.tokens > 0) {
    const RowPlan plan = dw ? with_column_sums(plan_of(op, a)) : plan_of(op, a);
    const auto planned = ring::plan(op.tokens, op.hidden, 3, op.groups == 1 && plan.wide && plan.group > 32, true, f.device());
    rows = planned.blocks > 0 ? planned.blocks : row_blocks(plan, op.tokens, dw != nullptr);
    const dim3 blocks(rows, static_cast<unsigned>(op.groups));
    if (planned.blocks > 0) ring::queue(dw ? gated_backward_ring<true> : gated_backward_ring<false>, planned, a, f.stream());
    else with_packs(plan, [&]<int V, int K>() {
      if (dw) gated_backward<V, K, true><<<blocks, plan.threads, plan.partial_bytes(), f.stream()>>>(a, plan.group);
      else gated_backward<V, K, false><<<blocks, plan.threads, 0, f.stream()>>>(a, plan.group);
    });
    kernels::check_launch("gated_rms_norm backward", shape(op));
  }
  if (dw) sum_partials(rows, op.hidden, a.partials, dw, f.stream());
}

std::string refusal(const op::GatedRmsNorm& op) {
  if (op.hidden % op.groups != 0) return std::to_string(op.hidden) + " columns do not divide into " + std::to_string(op.groups) + " groups";
  if (op.groups > 65535) return std::to_string(op.groups) + " groups are more than the 65535 that a launch takes";
  return {};
}
std::int64_t scratch(const op::GatedRmsNorm& op, Pass pass, Wants wants) {
  return pass == Pass::backward && wants.weight_grad && op.training == Training::full ? 4 * most_partials * op.hidden : 0;
}

}  // namespace moeplan::cuda
