/// AdamW on the GPU, with fp32 moments or with bytes that share a scale in 256: reference.cpp has the mathematics. 1 - b^n is taken as
/// -expm1(n log b), which keeps fp32's precision where b^n is near 1. State is updated in place or into other memory.
/// Mapping: a warp owns 256 neighbouring parameters, which is also what shares a scale; a lane has four of either half, so that each of a warp's
/// 16-byte accesses of fp32 covers whole sectors. Bytes a parameter at an f32 gradient and bf16
/// weight: 4 + 2 x (4 + 4 + 4) + 2 = 30; with moments of a byte 4 + 2 x (4 + 1 + 1) + 2 = 18, and 16 in 256 for scales.

#include <cmath>

#include "kernels/adamw/op.hpp"
#include "kernels/base/pack.cuh"
#include "kernels/cuda_frame.hpp"

namespace moeplan::cuda {
namespace {

constexpr int threads = 256, block = 256, each = 8;   // parameters of a warp, and of a lane

struct Hyper {
  float beta1, beta2, rest1, rest2;   ///< rest: 1 - beta, which fp32 would take from the rounded beta
  float epsilon, decay, log_beta1, log_beta2;
  const float* step;   ///< learning rate, clipping factor, number of this step
};
template <class G, class W>
struct Arguments {
  i64 elements;
  bool wide;
  Hyper hyper;
  const G* gradient;
  const float *master, *m, *v;
  float *master_out, *m_out, *v_out;
  const std::uint8_t *m_code, *v_code;
  const float *m_scale, *v_scale;
  std::uint8_t *m_code_out, *v_code_out;
  float *m_scale_out, *v_scale_out;
  W* weight;
};

/// Parameter j of a lane whose first is i.
__device__ __forceinline__ i64 at(i64 i, int j) { return j < each / 2 ? i + j : i + block / 2 + j - each / 2; }

/// A lane's values; past the end zeros.
template <class T>
__device__ __forceinline__ void read(const T* p, i64 i, i64 elements, bool whole, float (&out)[each]) {
  if (whole) {
    const auto low = load<each / 2>(p + i), high = load<each / 2>(p + i + block / 2);
#pragma unroll
    for (int j = 0; j < each / 2; ++j) out[j] = low[j], out[each / 2 + j] = high[j];
  } else {
#pragma unroll
    for (int j = 0; j < each; ++j) out[j] = at(i, j) < elements ? widened(p[at(i, j)]) : 0.0f;
  }
}
template <class T>
__device__ __forceinline__ void write(T* p, i64 i, i64 elements, bool whole, const float (&v)[each]) {
  if (whole) {
    const float low[each / 2] = {v[0], v[1], v[2], v[3]}, high[each / 2] = {v[4], v[5], v[6], v[7]};
    store<each / 2>(p + i, low), store<each / 2>(p + i + block / 2, high);
  } else {
#pragma unroll
    for (int j = 0; j < each; ++j)
      if (at(i, j) < elements) p[at(i, j)] = narrowed<T>(v[j]);
  }
}
__device__ __forceinline__ void read_codes(const std::uint8_t* p, i64 i, i64 elements, bool whole, float (&out)[each]) {
  if (whole) {
    const std::uint32_t low = __ldcs(reinterpret_cast<const std::uint32_t*>(p + i)), high = __ldcs(reinterpret_cast<const std::uint32_t*>(p + i + block / 2));
#pragma unroll
    for (int j = 0; j < each; ++j) out[j] = static_cast<float>(((j < 4 ? low : high) >> (j % 4 * 8)) & 255u);
  } else {
#pragma unroll
    for (int j = 0; j < each; ++j) out[j] = at(i, j) < elements ? static_cast<float>(p[at(i, j)]) : 0.0f;
  }
}
__device__ __forceinline__ void write_codes(std::uint8_t* p, i64 i, i64 elements, bool whole, const std::uint32_t (&code)[each]) {
  if (whole) {
    *reinterpret_cast<std::uint32_t*>(p + i) = code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24;
    *reinterpret_cast<std::uint32_t*>(p + i + block / 2) = code[4] | code[5] << 8 | code[6] << 16 | code[7] << 24;
  } else {
#pragma unroll
    for (int j = 0; j < each; ++j)
      if (at(i, j) < elements) p[at(i, j)] = static_cast<std::uint8_t>(code[j]);
  }
}
/// The special function unit's, within a unit of fp32.
__device__ __forceinline__ float square_root(float v) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(v));
  return root;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

template <bool bytes, class G, class W>
__global__ void __launch_bounds__(threads) step(const Arguments<G, W> a) {
  const i64 part = static_cast<i64>(blockIdx.x) * (threads / 32) + threadIdx.x / 32, i = part * block + threadIdx.x % 32 * (each / 2);
  if (part * block >= a.elements) return;   // whole warps
  const bool whole = a.wide && (part + 1) * block <= a.elements;
  float g[each], w[each], m[each], v[each];
  read(a.gradient, i, a.elements, whole, g);
  read(a.master, i, a.elements, whole, w);
  if constexpr (bytes) {
    read_codes(a.m_code, i, a.elements, whole, m);
    read_codes(a.v_code, i, a.elements, whole, v);
    const float m_scale = a.m_scale[part] * (1.0f / 127.0f), v_scale = a.v_scale[part] * (1.0f / 255.0f);
#pragma unroll
    for (int j = 0; j < each; ++j) {
      m[j] = at(i, j) < a.elements ? (m[j] - 128.0f) * m_scale : 0.0f;
      v[j] = v[j] * v_scale;
    }
  } else {
    read(a.m, i, a.elements, whole, m);
    read(a.v, i, a.elements, whole, v);
  }
  const Hyper& h = a.hyper;
  const float rate = h.step[0], clip = h.step[1], number = h.step[2];
  const float m_part = -expm1f(number * h.log_beta1), v_part = -expm1f(number * h.log_beta2);
  const float m_factor = 1.0f / m_part, v_factor = 1.0f / v_part;
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const float clipped = clip * g[j];
    m[j] = fmaf(h.beta1, m[j], h.rest1 * clipped);
    v[j] = fmaf(h.beta2, v[j], h.rest2 * clipped * clipped);
    const float update = __fdividef(m[j] * m_factor, square_root(v[j] * v_factor) + h.epsilon);
    w[j] -= rate * fmaf(h.decay, w[j], at(i, j) < a.elements ? update : 0.0f);
  }
  write(a.master_out, i, a.elements, whole, w);
  write(a.weight, i, a.elements, whole, w);
  if constexpr (!bytes) {
    write(a.m_out, i, a.elements, whole, m);
    write(a.v_out, i, a.elements, whole, v);
  } else {
    float m_most = 0, v_most = 0;
#pragma unroll
    for (int j = 0; j < each; ++j) m_most = fmaxf(m_most, fabsf(m[j])), v_most = fmaxf(v_most, v[j]);
    m_most = warp_max(m_most), v_most = warp_max(v_most);
    const float to_m = m_most > 0 ? 127.0f / m_most : 0.0f, to_v = v_most > 0 ? 255.0f / v_most : 0.0f;
    std::uint32_t m_code[each], v_code[each];
#pragma unroll
    for (int j = 0; j < each; ++j) m_code[j] = static_cast<std::uint32_t>(128 + __float2int_rn(m[j] * to_m)), v_code[j] = __float2uint_rn(v[j] * to_v);
    write_codes(a.m_code_out, i, a.elements, whole, m_code);
    write_codes(a.v_code_out, i, a.elements, whole, v_code);
    if (threadIdx.x % 32 == 0) a.m_scale_out[part] = m_most, a.v_scale_out[part] = v_most;
  }
}

template <class G, class W>
void run(const op::AdamW& op, const Frame& f) {
  if (op.elements == 0) return;
  const bool bytes = op.optimizer == OptimizerKind::adamw8bit;
  Arguments<G, W> a{};
  a.elements = op.elements;
  a.hyper = {static_cast<float>(op.beta1), static_cast<float>(op.beta2), static_cast<float>(1 - op.beta1), static_cast<float>(1 - op.beta2), static_cast<float>(op.epsilon), static_cast<float>(op.weight_decay),
             static_cast<float>(std::log(op.beta1)), static_cast<float>(std::log(op.beta2)), f["step_size"].as<float>()};
  a.gradient = f["gradient"].as<G>(), a.weight = f["weight"].as<W>();
  a.master = f["master"].as<float>(), a.master_out = f.written("master").as<float>();
  if (bytes) {
    a.m_code = f["m"].as<std::uint8_t>(), a.v_code = f["v"].as<std::uint8_t>(), a.m_scale = f["m_scale"].as<float>(), a.v_scale = f["v_scale"].as<float>();
    a.m_code_out = f.written("m").as<std::uint8_t>(), a.v_code_out = f.written("v").as<std::uint8_t>();
    a.m_scale_out = f.written("m_scale").as<float>(), a.v_scale_out = f.written("v_scale").as<float>();
  } else {
    a.m = f["m"].as<float>(), a.v = f["v"].as<float>(), a.m_out = f.written("m").as<float>(), a.v_out = f.written("v").as<float>();
  }
  a.wide = aligned({a.gradient, a.weight, a.master, a.master_out, a.m, a.v, a.m_out, a.v_out, a.m_code, a.v_code, a.m_code_out, a.v_code_out});
  const i64 parts = (op.elements + block - 1) / block;
  const auto blocks = static_cast<unsigned>((parts + threads / 32 - 1) / (threads / 32));
  if (bytes) step<true, G, W><<<blocks, threads, 0, f.stream()>>>(a);
  else step<false, G, W><<<blocks, threads, 0, f.stream()>>>(a);
  kernels::check_launch("adamw", "elements=" + std::to_string(op.elements));
}

}  // namespace

void forward(const op::AdamW& op, const Frame& f) {
  const bool whole_gradient = op.gradient == DType::f32, whole_weight = op.weight == DType::f32;
  if (whole_gradient && whole_weight) run<float, float>(op, f);
  else if (whole_gradient) run<float, bf16>(op, f);
  else if (whole_weight) run<bf16, float>(op, f);
  else run<bf16, bf16>(op, f);
}
void backward(const op::AdamW&, const Frame&) {}

std::string refusal(const op::AdamW& op) {
  const auto plain = [](DType type) { return type == DType::f32 || type == DType::bf16; };
  if (op.optimizer == OptimizerKind::muon) return "has no CUDA kernel for muon: its Newton-Schulz products are not here";
  if (!plain(op.gradient) || !plain(op.weight)) return "reads gradients and writes weights of f32 or bf16";
  return {};
}
std::int64_t scratch(const op::AdamW&, Pass, Wants) { return 0; }

}  // namespace moeplan::cuda
