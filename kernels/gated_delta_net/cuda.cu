/// Gated DeltaNet on the GPU as the member of KDA's family it is: one decay a head is KDA with the same decay in each
/// channel, and value heads that share a key head are heads with equal keys. The scalars and the shared heads are
/// written out first (2 D bytes a token and head each), KDA's kernels run, and the gradients are summed back: over the
/// channels for a and dt_bias, over the value heads of a key head for q and k, in fp32 and in order. Bytes besides
/// KDA's: forward 2 D (1 + 2 [value heads share keys]) written and read a token and value head, backward twice that.

#include <algorithm>

#include "kernels/base/ragged.cuh"
#include "kernels/cuda.hpp"

namespace moeplan::cuda {
namespace {

using Op = op::GatedDeltaNet;
constexpr int threads = 256;

op::Kda kda_of(const Op& op) {
  return {.tokens = op.tokens,
          .sequence_length = op.sequence_length,
          .heads = op.v_heads,
          .head_dim = op.d_k,
          .packed_sequences = op.packed_sequences,
          .training = op.training};
}

unsigned blocks_for(i64 n) {
  return static_cast<unsigned>(std::clamp<i64>((n + threads - 1) / threads, 1, i64{1} << 20));
}

/// out[t, h, :] = in[t, h / group, :], rows of `width` bf16, a multiple of 8.
__global__ void __launch_bounds__(threads)
    repeat_heads(i64 tokens, int heads, int group, int width, const bf16* in, bf16* out) {
  const i64 packs = width / 8, n = tokens * heads * packs;
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n;
       i += static_cast<i64>(gridDim.x) * threads) {
    const i64 row = i / packs, t = row / heads, head = row % heads;
    store<8>(out + i * 8, load<8, false>(in + ((t * (heads / group) + head / group) * packs + i % packs) * 8));
  }
}

/// out[row, :] = in[row].
template <class T>
__global__ void __launch_bounds__(threads) spread(i64 rows, int width, const T* in, T* out) {
  const i64 packs = width / 8, n = rows * packs;
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n;
       i += static_cast<i64>(gridDim.x) * threads) {
    const float one = widened(in[i / packs]), all[8] = {one, one, one, one, one, one, one, one};
    store<8>(out + i * 8, all);
  }
}

/// out[t, h, :] = sum of in[t, h group ... , :].
__global__ void __launch_bounds__(threads)
    sum_heads(i64 tokens, int heads, int group, int width, const bf16* in, bf16* out) {
  const i64 packs = width / 8, n = tokens * (heads / group) * packs;
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < n;
       i += static_cast<i64>(gridDim.x) * threads) {
    const i64 row = i / packs;  // token and key head; its value heads lie one after the other
    float sum[8] = {};
    for (int g = 0; g < group; ++g) {
      const auto v = load<8>(in + ((row * group + g) * packs + i % packs) * 8);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += v[j];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) out[i * 8 + j] = __float2bfloat16(sum[j]);  // the view may start anywhere
  }
}

/// A warp a row: out[row] = sum of in[row, :].
template <class T>
__global__ void __launch_bounds__(threads) sum_channels(i64 rows, int width, const T* in, T* out) {
  const i64 row = static_cast<i64>(blockIdx.x) * (threads / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  float sum = 0;
  for (int c = lane; c < width; c += 32) sum += widened(in[row * width + c]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) out[row] = narrowed<T>(sum);
}

/// Where things lie in the scratch; a first pass without memory counts the bytes.
struct Scratch {
  bf16 *q = nullptr, *k = nullptr, *gate = nullptr, *d_q = nullptr, *d_k = nullptr, *d_gate = nullptr;
  float *bias = nullptr, *d_bias = nullptr;
  char* inner = nullptr;
  std::int64_t bytes = 0;
};
Scratch laid_out(const Op& op, Pass pass, Wants wants, char* base) {
  Scratch s;
  const auto take = [&](std::int64_t bytes) {
    char* const at = base == nullptr ? nullptr : base + s.bytes;
    s.bytes += aligned_bytes(bytes);
    return at;
  };
  const std::int64_t wide = 2 * op.tokens * op.v_heads * op.d_k;
  const bool shared = op.v_heads != op.k_heads, backward = pass == Pass::backward;
  if (shared) s.q = reinterpret_cast<bf16*>(take(wide)), s.k = reinterpret_cast<bf16*>(take(wide));
  s.gate = reinterpret_cast<bf16*>(take(wide));
  s.bias = reinterpret_cast<float*>(take(4 * op.v_heads * op.d_k));
  if (backward && shared && wants.input_grad)
    s.d_q = reinterpret_cast<bf16*>(take(wide)), s.d_k = reinterpret_cast<bf16*>(take(wide));
  if (backward && wants.input_grad) s.d_gate = reinterpret_cast<bf16*>(take(wide));
  if (backward && wants.weight_grad) s.d_bias = reinterpret_cast<float*>(take(4 * op.v_heads * op.d_k));
  s.inner = take(scratch(kda_of(op), pass, wants));
  return s;
}

/// KDA's operands by name, the widened ones written.
struct Inner {
  op::Kda op;
  Operands list;
  std::array<void*, 24> values{}, gradients{};

  void set(std::array<void*, 24>& to, std::string_view name, const void* data) const {
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].name == name) to[i] = const_cast<void*>(data);
  }
  [[nodiscard]] Frame frame(const Scratch& s, const Frame& outer) const {
    return {list, values, gradients, s.inner, outer.stream(), outer.device()};
  }
};

Inner widen(const Op& op, const Frame& f, const Scratch& s) {
  require_aligned(op.kind, {f["q"].data, f["k"].data, f["v"].data, f["y"].data, f.d("y").data, f.d("q").data,
                            f.d("k").data, f.d("v").data});
  Inner in{.op = kda_of(op), .list = kda_of(op).operands()};
  const int heads = static_cast<int>(op.v_heads), group = static_cast<int>(op.v_heads / op.k_heads),
            width = static_cast<int>(op.d_k);
  const i64 rows = op.tokens * op.v_heads;
  const auto shared = [&](std::string_view name, bf16* wide) {
    const bf16* from = f[name].as<bf16>();
    if (wide != nullptr)
      repeat_heads<<<blocks_for(rows * width / 8), threads, 0, f.stream()>>>(op.tokens, heads, group, width, from,
                                                                             wide);
    in.set(in.values, name, wide != nullptr ? wide : from);
  };
  shared("q", s.q), shared("k", s.k);
  spread<<<blocks_for(rows * width / 8), threads, 0, f.stream()>>>(rows, width, f["a"].as<bf16>(), s.gate);
  spread<<<blocks_for(op.v_heads * width / 8), threads, 0, f.stream()>>>(op.v_heads, width, f["dt_bias"].as<float>(),
                                                                         s.bias);
  kernels::check_launch("gated_delta_net heads",
                        "tokens=" + std::to_string(op.tokens) + " heads=" + std::to_string(op.v_heads));
  in.set(in.values, "gate", s.gate), in.set(in.values, "dt_bias", s.bias);
  for (const std::string_view name : {"v", "beta", "starts", "a_log", "y"}) in.set(in.values, name, f[name].data);
  return in;
}

}  // namespace

void forward(const Op& op, const Frame& f) {
  if (op.tokens == 0) return;
  const Scratch s = laid_out(op, Pass::forward, {}, f.scratch<char>());
  const Inner in = widen(op, f, s);
  forward(in.op, in.frame(s, f));
}

void backward(const Op& op, const Frame& f) {
  if (op.tokens == 0) {
    for (const char* name : {"a_log", "dt_bias"})
      if (float* d = f.d(name).as<float>())
        kernels::check(cudaMemsetAsync(d, 0, static_cast<std::size_t>(4 * op.v_heads), f.stream()),
                       "gated_delta_net backward without tokens");
    return;
  }
  const bool inputs = f.d("q") || f.d("k") || f.d("v") || f.d("a") || f.d("beta");
  const Scratch s = laid_out(op, Pass::backward, {inputs, f.d("a_log") || f.d("dt_bias")}, f.scratch<char>());
  Inner in = widen(op, f, s);
  const auto shared = [&](std::string_view name, bf16* wide) {
    in.set(in.gradients, name, f.d(name) && wide != nullptr ? wide : f.d(name).data);
  };
  shared("q", s.d_q), shared("k", s.d_k);
  if (f.d("a")) in.set(in.gradients, "gate", s.d_gate);
  if (f.d("dt_bias")) in.set(in.gradients, "dt_bias", s.d_bias);
  for (const std::string_view name : {"y", "v", "beta", "a_log"}) in.set(in.gradients, name, f.d(name).data);
  backward(in.op, in.frame(s, f));
  const int heads = static_cast<int>(op.v_heads), group = static_cast<int>(op.v_heads / op.k_heads),
            width = static_cast<int>(op.d_k);
  const i64 rows = op.tokens * op.v_heads;
  const auto sum = [&](std::string_view name, const bf16* wide) {
    if (bf16* d = f.d(name).as<bf16>(); d != nullptr && wide != nullptr)
      sum_heads<<<blocks_for(rows / group * width / 8), threads, 0, f.stream()>>>(op.tokens, heads, group, width, wide,
                                                                                  d);
  };
  sum("q", s.d_q), sum("k", s.d_k);
  const auto warps = [](i64 n) { return static_cast<unsigned>((n + threads / 32 - 1) / (threads / 32)); };
  if (bf16* d = f.d("a").as<bf16>()) sum_channels<<<warps(rows), threads, 0, f.stream()>>>(rows, width, s.d_gate, d);
  if (float* d = f.d("dt_bias").as<float>())
    sum_channels<<<warps(op.v_heads), threads, 0, f.stream()>>>(op.v_heads, width, s.d_bias, d);
  kernels::check_launch("gated_delta_net gradients",
                        "tokens=" + std::to_string(op.tokens) + " heads=" + std::to_string(op.v_heads));
}

std::string refusal(const Op& op) {
  if (op.d_k != op.d_v)
    return "keys of " + std::to_string(op.d_k) + " and values of " + std::to_string(op.d_v) +
           " columns; its CUDA kernels take equal widths";
  if (op.v_heads % op.k_heads != 0)
    return std::to_string(op.v_heads) + " value heads are no multiple of " + std::to_string(op.k_heads) + " key heads";
  return refusal(kda_of(op));
}

/// The widened operands and gradients, and KDA's own.
std::int64_t scratch(const Op& op, Pass pass, Wants wants) {
  if (op.tokens == 0 || (pass == Pass::backward && wants == Wants{false, false}) || !refusal(op).empty()) return 0;
  return laid_out(op, pass, wants, nullptr).bytes;
}

}  // namespace moeplan::cuda
