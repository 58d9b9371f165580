/// Product with a gate on the GPU: y_c = x_c f(g_{c / share});  dx_c = dy_c f(g),  dg = f'(g) sum_c dy_c x_c over the columns that share it.
/// Mapping: the columns that share a gate are contiguous, so they are rows (kernels/base/rows.cuh) with one gate each; without sharing
/// it is pointwise. Bytes at n = tokens x width, m = tokens x gate_width in bf16: forward 4 n + 2 m, backward 6 n + 4 m.

#include "kernels/base/math.cuh"
#include "kernels/base/rows.cuh"
#include "kernels/cuda_frame.hpp"
#include "kernels/mul_gate/op.hpp"

namespace moeplan::cuda {
namespace {

template <class G>
struct Arguments {
  const bf16 *x, *dy;
  const G* gate;
  bf16 *y, *dx;
  G* dgate;
  i64 rows, width;   ///< gates, and columns of each
  op::GateFunction function;
};

template <class G>
struct Apply {
  static constexpr int unroll = 2;
  Arguments<G> a;
  template <int V>
  struct Piece {
    Pack<bf16, V> x;
    Pack<G, V> gate;
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const { return {cuda::load<V>(a.x + i), cuda::load<V>(a.gate + i)}; }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const {
    float y[V];
#pragma unroll
    for (int j = 0; j < V; ++j) y[j] = p.x[j] * gate_dual(a.function, p.gate[j]).value;
    cuda::store<V>(a.y + i, y);
  }
};
template <class G>
struct Derive {
  static constexpr int unroll = 2;
  Arguments<G> a;
  template <int V>
  struct Piece {
    Pack<bf16, V> x, dy;
    Pack<G, V> gate;
  };
  template <int V>
  __device__ Piece<V> load(i64 i) const { return {cuda::load<V>(a.x + i), cuda::load<V>(a.dy + i), cuda::load<V>(a.gate + i)}; }
  template <int V>
  __device__ void store(i64 i, const Piece<V>& p) const {
    float dx[V], dgate[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const Dual g = gate_dual(a.function, p.gate[j]);
      dx[j] = p.dy[j] * g.value, dgate[j] = p.dy[j] * p.x[j] * g.slope;
    }
    if (a.dx != nullptr) cuda::store<V>(a.dx + i, dx);
    if (a.dgate != nullptr) cuda::store<V>(a.dgate + i, dgate);
  }
};

template <int V, int K, class G>
__global__ void __launch_bounds__(most_row_threads) shared_forward(Arguments<G> a, int group) {
  const int lane = threadIdx.x % group, sub = threadIdx.x / group, rows = blockDim.x / group;
  const i64 row = static_cast<i64>(blockIdx.x) * rows + sub, at = row * a.width;
  if (row >= a.rows) return;
  const auto column = [&](int k) { return static_cast<i64>(lane + k * group) * V; };
  Pack<bf16, V> x[K];
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (column(k) < a.width) x[k] = load<V>(a.x + at + column(k));
  const float g = gate_dual(a.function, widened(a.gate[row])).value;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (column(k) >= a.width) continue;
    float y[V];
#pragma unroll
    for (int j = 0; j < V; ++j) y[j] = x[k][j] * g;
    store<V>(a.y + at + column(k), y);
  }
}

template <int V, int K, class G>
__global__ void __launch_bounds__(most_row_threads) shared_backward(Arguments<G> a, int group) {
  __shared__ float shared[64];
  int turn = 0;
  const int lane = threadIdx.x % group, sub = threadIdx.x / group, rows = blockDim.x / group;
  const i64 row = static_cast<i64>(blockIdx.x) * rows + sub, at = row * a.width;
  const auto column = [&](int k) { return static_cast<i64>(lane + k * group) * V; };
  const auto inside = [&](int k) { return row < a.rows && column(k) < a.width; };
  Pack<bf16, V> x[K], dy[K];
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (inside(k)) x[k] = load<V>(a.x + at + column(k)), dy[k] = load<V>(a.dy + at + column(k));
  const Dual g = gate_dual(a.function, row < a.rows ? widened(a.gate[row]) : 0.0f);
  float sum[1] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (!inside(k)) continue;
    float dx[V];
#pragma unroll
    for (int j = 0; j < V; ++j) sum[0] = fmaf(x[k][j], dy[k][j], sum[0]), dx[j] = dy[k][j] * g.value;
    if (a.dx != nullptr) store<V>(a.dx + at + column(k), dx);
  }
  group_sum<1>(sum, group, shared, turn);
  if (lane == 0 && row < a.rows && a.dgate != nullptr) a.dgate[row] = narrowed<G>(sum[0] * g.slope);
}

template <class G>
void run(const op::MulGate& op, const Frame& f, Pass pass) {
  const Arguments<G> a{f["x"].as<bf16>(), f.d("y").as<bf16>(), f["gate"].as<G>(), f["y"].as<bf16>(), f.d("x").as<bf16>(), f.d("gate").as<G>(),
                       op.tokens * op.gate_width, op.width / op.gate_width, op.function};
  if (a.rows == 0) return;
  const bool back = pass == Pass::backward, packs = aligned({a.x, a.dy, a.y, a.dx});
  if (a.width == 1) {
    const bool wide = packs && aligned({a.gate, a.dgate});
    if (back) pointwise(a.rows, wide, Derive<G>{a}, f.stream(), "mul_gate backward");
    else pointwise(a.rows, wide, Apply<G>{a}, f.stream(), "mul_gate forward");
    return;
  }
  const RowPlan plan = row_plan(op.kind, a.width, a.width % 8 == 0 && packs);
  const unsigned blocks = row_blocks(plan, a.rows);
  with_packs(plan, [&]<int V, int K>() {
    if (back) shared_backward<V, K, G><<<blocks, plan.threads, 0, f.stream()>>>(a, plan.group);
    else shared_forward<V, K, G><<<blocks, plan.threads, 0, f.stream()>>>(a, plan.group);
  });
  kernels::check_launch("mul_gate", "tokens=" + std::to_string(op.tokens) + " width=" + std::to_string(op.width) + " gate_width=" + std::to_string(op.gate_width));
}

}  // namespace

void forward(const op::MulGate& op, const Frame& f) { op.gate == DType::f32 ? run<float>(op, f, Pass::forward) : run<bf16>(op, f, Pass::forward); }
void backward(const op::MulGate& op, const Frame& f) { op.gate == DType::f32 ? run<float>(op, f, Pass::backward) : run<bf16>(op, f, Pass::backward); }

std::string refusal(const op::MulGate& op) {
  if (op.gate_width < 1 || op.width % op.gate_width != 0) return std::to_string(op.gate_width) + " gate columns do not divide " + std::to_string(op.width) + " columns";
  return op.gate == DType::f32 || op.gate == DType::bf16 ? std::string() : "reads a gate of bf16 or f32, not " + std::string(name_of(op.gate));
}
std::int64_t scratch(const op::MulGate&, Pass, Wants) { return 0; }

}  // namespace moeplan::cuda
