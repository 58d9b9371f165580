/// \file
/// Mamba-1's selective scan on the GPU: reference.cpp has the mathematics, scan.cuh the mapping. The outputs here;
/// states in states.cu, gradients in backward.cu. What it takes is powers of two: 2 a token, channel and entry forward,
/// 4 backward, 16 a cycle and multiprocessor; bytes at n = tokens x inner: 10 n forward (x and dt are read twice), 16 n
/// backward, and the states of 64-token chunks, 1 byte a token, channel and entry.

#include "kernels/cuda_frame.hpp"
#include "kernels/mamba1/scan.cuh"

namespace moeplan::cuda {
namespace mamba1 {
namespace {

__global__ void __launch_bounds__(threads) outputs(const Problem p) {
  __shared__ Tile step, x;
  __shared__ __align__(16) Vectors b, c;
  const int sets = static_cast<int>((p.inner + channels - 1) / channels), chunk = static_cast<int>(blockIdx.x) / sets;
  const i64 first = static_cast<i64>(chunk) * mamba1::tokens,
            from = static_cast<i64>(static_cast<int>(blockIdx.x) % sets) * channels;
  fill(step, p, p.dt, first, from, [](float raw) { return softplus(raw); });
  fill(x, p, p.x, first, from, [](float v) { return v; });
  fill(b, p, p.b, first);
  fill(c, p, p.c, first);
  const Mine mine(p, from);
  const i64 channel = from + mine.channel;
  float h[each] = {}, d = 0;
  if (channel < p.inner) {
    const float4 entering = *reinterpret_cast<const float4*>(
        p.entering + (static_cast<i64>(chunk) * p.inner + channel) * states + mine.part * each);
    h[0] = entering.x, h[1] = entering.y, h[2] = entering.z, h[3] = entering.w;
    d = p.d[channel];
  }
  __syncthreads();
  const std::uint64_t begins = beginnings(p, chunk);
  for (int t = 0; t < mamba1::tokens; ++t) {
    const float dt = step[t][mine.channel], value = x[t][mine.channel];
    float y = 0, writes[each], reads[each];
    read(b, t, mine.part, writes), read(c, t, mine.part, reads);
#pragma unroll
    for (int s = 0; s < each; ++s) {
      h[s] = fmaf(power_of_two(-mine.rate[s] * dt), begins >> t & 1 ? 0.0f : h[s], dt * value * writes[s]);
      y = fmaf(h[s], reads[s], y);
    }
    y = channel_sum(y);
    __syncwarp();
    if (mine.part == 0) x[t][mine.channel] = fmaf(d, value, y);  // the four lanes have read it
  }
  __syncthreads();
  drain(x, p, p.y, first, from);
}

}  // namespace
}  // namespace mamba1

namespace {

mamba1::Problem problem(const op::Mamba1& op, const Frame& f, bool backward) {
  mamba1::Problem p{};
  p.x = f["x"].as<bf16>(), p.dt = f["dt"].as<bf16>(), p.b = f["b"].as<bf16>(), p.c = f["c"].as<bf16>();
  p.a_log = f["a_log"].as<float>(), p.d = f["d"].as<float>();
  p.starts = op.packed_sequences != 0 ? f["starts"].as<i64>() : nullptr, p.packed = static_cast<int>(op.packed_sequences);
  p.tokens = op.tokens, p.length = op.sequence_length, p.inner = op.inner, p.state = static_cast<int>(op.state);
  p.chunks = static_cast<int>(moeplan::mamba1::chunks(op)), p.parts = static_cast<int>(moeplan::mamba1::parts(op));
  if (backward) {
    p.dy = f.d("y").as<bf16>(), p.dx = f.d("x").as<bf16>(), p.d_dt = f.d("dt").as<bf16>(), p.db = f.d("b").as<bf16>(),
    p.dc = f.d("c").as<bf16>();
    p.da_log = f.d("a_log").as<float>(), p.dd = f.d("d").as<float>();
  } else {
    p.y = f["y"].as<bf16>();
  }
  p.vectors = op.inner % 8 == 0 && aligned({p.x, p.dt, p.dy, p.y, p.dx, p.d_dt});
  const moeplan::mamba1::Layout l = moeplan::mamba1::layout(op, backward);
  const auto at = [&](i64 offset) {
    return offset < 0 ? nullptr : reinterpret_cast<float*>(f.scratch<char>() + offset);
  };
  p.entering = at(l.states), p.leaving = at(l.d_states), p.steps = at(l.steps), p.sums = at(l.parts),
  p.a_log_sums = at(l.a_log), p.d_sums = at(l.d);
  return p;
}

}  // namespace

void forward(const op::Mamba1& op, const Frame& f) {
  if (op.tokens == 0) return;
  const mamba1::Problem p = problem(op, f, false);
  mamba1::enter_states(p, f.stream());
  const i64 sets = (p.inner + mamba1::channels - 1) / mamba1::channels;
  mamba1::outputs<<<static_cast<unsigned>(sets * p.chunks), mamba1::threads, 0, f.stream()>>>(p);
  kernels::check_launch("mamba1 outputs", mamba1::shape(p));
}

void backward(const op::Mamba1& op, const Frame& f) {
  if (op.tokens == 0) {
    const auto clear = [&](std::string_view name, i64 elements) {
      if (float* d = f.d(name).as<float>())
        kernels::check(cudaMemsetAsync(d, 0, static_cast<std::size_t>(4 * elements), f.stream()),
                       "mamba1 backward without tokens");
    };
    clear("a_log", op.inner * op.state), clear("d", op.inner);
    return;
  }
  const mamba1::Problem p = problem(op, f, true);
  mamba1::enter_states(p, f.stream());
  mamba1::leave_gradients(p, f.stream());
  mamba1::gradients(p, f.stream());
}

std::string refusal(const op::Mamba1& op) {
  if (op.state > moeplan::mamba1::most_state)
    return "a state of " + std::to_string(op.state) + " entries a channel; its CUDA kernels hold up to " +
           std::to_string(moeplan::mamba1::most_state);
  if (moeplan::mamba1::chunks(op) * ((op.inner + 63) / 64) >= (std::int64_t{1} << 31))
    return std::to_string(op.tokens) + " tokens of " + std::to_string(op.inner) +
           " channels; its CUDA kernels take 2^31 blocks of 64 by 64";
  return {};
}

std::int64_t scratch(const op::Mamba1& op, Pass pass, Wants wants) {
  if (!refusal(op).empty() || (pass == Pass::backward && wants == Wants{false, false})) return 0;
  return moeplan::mamba1::layout(op, pass == Pass::backward).total;
}

}  // namespace moeplan::cuda
