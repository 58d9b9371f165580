/// \file
/// What is left of the backward: gradients of dt and of the parameters from the sums of rows and columns, and dq, dk
/// from their parts; and the host's order of kernels.
///
/// With g_t the gradient of log a_t, of tokens of one chunk and sequence:
///     g_t = sum_{i >= t} (row_pairs_i - dt_i pairs_i + row_state_i)
///           + [the sequence leaves the chunk] (sum_{j < t} f_j dt_j key_state_j + [it entered] e^(G_last) <S, D>)
///     ddt_t = pairs_t + own_t + f_t key_state_t - e^A_log g_t,  draw = ddt sigmoid(raw + bias),  dA_log = -sum e^A_log
///     dt_t g_t

#include "kernels/base/math.cuh"
#include "kernels/base/rows.cuh"
#include "kernels/mamba2/chunks.cuh"

namespace moeplan::cuda::ssd {
namespace {

/// Sum over the block, for all; in a fixed order. `shared`: a float a warp.
__device__ __forceinline__ float block_sum(float v, float* shared) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(~0u, v, o);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < rows / 32; ++w) sum += shared[w];
  return sum;
}

/// A block a chunk and head, a thread a token.
__global__ void __launch_bounds__(rows) gate_gradients_kernel(const Problem p) {
  __shared__ Gate gate;
  __shared__ float warps[rows / 32], behind[rows], before[rows];
  const int chunk = static_cast<int>(blockIdx.x / p.heads), head = static_cast<int>(blockIdx.x % p.heads),
            i = threadIdx.x;
  gate.load(p, chunk, head);
  const bf16 *s = p.state(p.states, chunk, head), *d = p.state(p.d_states, chunk, head);
  float product = 0;
  for (int at = i * 8; at < p.n * p.pitch; at += rows * 8) {
    const auto a = load<8>(s + at), b = load<8>(d + at);
#pragma unroll
    for (int e = 0; e < 8; ++e) product = fmaf(a[e], b[e], product);
  }
  product = block_sum(product, warps);
  const float step = gate.step[i], column = p.term(pairs, head, chunk)[i], state = p.term(key_state, head, chunk)[i];
  const float leaves = gate.leaves(i);
  behind[i] = p.term(row_pairs, head, chunk)[i] - step * column + p.term(row_state, head, chunk)[i];
  before[i] = passed(leaves * step, state);
  __syncthreads();
  const int first = gate.first[i];
  float g = 0;
  for (int j = rows - 1; j >= i; --j)
    if (gate.first[j] == first) g += behind[j];
  if (first == gate.first[rows - 1]) {
    float sum = 0;
    for (int j = max(first, 0); j < i; ++j) sum += before[j];
    g += sum;
    if (first < 0) g = fmaf(power_of_two(gate.decay[rows - 1]), product, g);
  }
  const i64 t = static_cast<i64>(chunk) * rows + i;
  const float rate = expf(p.a_log[head]);
  float draw = 0;
  if (t < p.tokens) {
    const float ddt = column + p.term(own, head, chunk)[i] + passed(leaves, state) - rate * g;
    draw = ddt * sigmoid(widened(p.raw[t * p.heads + head]) + p.bias[head]);
    if (p.d_raw != nullptr) p.d_raw[t * p.heads + head] = __float2bfloat16(draw);
  }
  if (p.sums == nullptr) return;
  const float a_log = block_sum(-rate * step * g, warps), bias = block_sum(draw, warps),
              skip = block_sum(p.term(skipped, head, chunk)[i], warps);
  const i64 to = static_cast<i64>(chunk) * p.heads + head, each = static_cast<i64>(p.chunks) * p.heads;
  if (i == 0) p.sums[to] = a_log, p.sums[each + to] = bias, p.sums[2 * each + to] = skip;
}

__global__ void __launch_bounds__(256) sum_parts_kernel(i64 elements, int parts, const float* in, bf16* out) {
  const i64 i = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= elements) return;
  float sum = 0;
  for (int part = 0; part < parts; ++part) sum += in[part * elements + i];
  out[i] = __float2bfloat16(sum);
}

}  // namespace

void gate_gradients(const Problem& p, cudaStream_t stream) {
  gate_gradients_kernel<<<static_cast<unsigned>(p.chunks) * static_cast<unsigned>(p.heads), rows, 0, stream>>>(p);
  kernels::check_launch("scan gradients of the gate", shape(p));
  const i64 each = static_cast<i64>(p.chunks) * p.heads;
  if (p.d_a_log != nullptr) sum_partials(p.chunks, p.heads, p.sums, p.d_a_log, stream);
  if (p.d_bias != nullptr) sum_partials(p.chunks, p.heads, p.sums + each, p.d_bias, stream);
  if (p.d_skip != nullptr) sum_partials(p.chunks, p.heads, p.sums + 2 * each, p.d_skip, stream);
}

void sum_parts(const Problem& p, cudaStream_t stream) {
  const i64 elements = p.tokens * p.groups * p.n;
  const auto blocks = static_cast<unsigned>((elements + 255) / 256);
  if (p.dq != nullptr) sum_parts_kernel<<<blocks, 256, 0, stream>>>(elements, p.parts, p.dq_parts, p.dq);
  if (p.dk != nullptr) sum_parts_kernel<<<blocks, 256, 0, stream>>>(elements, p.parts, p.dk_parts, p.dk);
  kernels::check_launch("scan sums of parts", shape(p));
}

void forward(const Problem& p, cudaStream_t stream) {
  gates(p, stream);
  enter_states(p, stream);
  outputs(p, stream);
}

void backward(const Problem& p, cudaStream_t stream) {
  gates(p, stream);
  enter_states(p, stream);
  leave_gradients(p, stream);
  query_gradients(p, stream);
  key_gradients(p, stream);
  if (p.parts > 1) sum_parts(p, stream);
  if (p.terms != nullptr) gate_gradients(p, stream);
}

Problem laid_out(Problem p, const moeplan::ssd::Dims& d, bool backward, char* scratch) {
  const moeplan::ssd::Layout l = moeplan::ssd::layout(d, backward);
  const auto at = [&](i64 offset, auto*& to) {
    if (offset >= 0) to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(scratch + offset);
  };
  p.tokens = d.tokens, p.heads = static_cast<int>(d.heads), p.groups = static_cast<int>(d.groups);
  p.n = static_cast<int>(d.state), p.p = static_cast<int>(d.head_dim), p.pitch = (p.p + 7) / 8 * 8;
  p.chunks = static_cast<int>(moeplan::ssd::chunks(d)), p.parts = static_cast<int>(moeplan::ssd::parts(d));
  at(l.first, p.first), at(l.decay, p.decay), at(l.step, p.step), at(l.states, p.states), at(l.d_states, p.d_states);
  at(l.terms, p.terms), at(l.sums, p.sums), at(l.dq_parts, p.dq_parts), at(l.dk_parts, p.dk_parts);
  p.vectors = p.n % 8 == 0 && p.p % 8 == 0 && aligned({p.q, p.k, p.v, p.dy, p.y, p.dq, p.dk, p.dv});
  return p;
}

std::string refusal(const moeplan::ssd::Dims& d) {
  if (d.state > moeplan::ssd::most_width || d.head_dim > moeplan::ssd::most_width)
    return "a state of " + std::to_string(d.state) + " x " + std::to_string(d.head_dim) +
           " a head; its CUDA kernels hold up to 128 x 128";
  if (d.heads % d.groups != 0)
    return std::to_string(d.heads) + " heads are no multiple of " + std::to_string(d.groups) + " groups";
  if (moeplan::ssd::chunks(d) * d.heads >= (std::int64_t{1} << 31))
    return std::to_string(d.tokens) + " tokens of " + std::to_string(d.heads) +
           " heads; its CUDA kernels take 2^31 chunks of 128 tokens and heads";
  return {};
}

}  // namespace moeplan::cuda::ssd
