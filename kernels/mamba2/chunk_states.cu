/// \file
/// Gates of every token, and the two scans over chunks: the states that enter them, and backward the gradients of the
/// states that leave them. A block owns 64 x 64 of one head's state in registers and walks the chunks; the next chunk's
/// rows arrive while this one is multiplied. Bytes a token and head (n, p of q and v): 2 (p n / 64 + n p / 64) read,
/// mostly from the second-level cache, and 2 n p / 128 written.

#include "kernels/attention/launch.cuh"
#include "kernels/base/softplus.cuh"
#include "kernels/mamba2/chunks.cuh"

namespace moeplan::cuda::ssd {
namespace {

constexpr int scan_threads = 128, side = 64;
constexpr std::size_t scan_bytes = 2 * 2 * rows * side * 2;  // two stages of two tiles
static_assert(scan_threads == rows);

__device__ __forceinline__ i64 begin_of(const Problem& p, i64 t) {
  if (p.starts == nullptr) return t / p.length * p.length;
  int low = 0, high = p.packed;  // the last boundary that is not behind t
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (p.starts[middle] <= t)
      low = middle;
    else
      high = middle;
  }
  return min(max(p.starts[low], i64{0}), t);
}

/// A block a chunk and head, a thread a token.
__global__ void __launch_bounds__(rows) gates_kernel(const Problem p) {
  __shared__ float warps[rows / 32];
  const int chunk = static_cast<int>(blockIdx.x / p.heads), head = static_cast<int>(blockIdx.x % p.heads),
            i = threadIdx.x;
  const i64 t = static_cast<i64>(chunk) * rows + i;
  const bool there = t < p.tokens;
  float step = there ? 1.0f : 0.0f, log2_decay = 0;
  if (p.raw != nullptr) {
    step = there ? softplus(widened(p.raw[t * p.heads + head]) + p.bias[head]) : 0.0f;
    log2_decay = -expf(p.a_log[head]) * step * attention::log2_e;
  } else if (there) {
    log2_decay = -p.slope * exp2f(-p.slope_step * static_cast<float>(head));
  }
  // Past 2^-126 a decay is zero here; more would only cost the sum's precision.
  log2_decay = fmaxf(log2_decay, -200.0f);
  const int first = static_cast<int>(
      max(begin_of(p, min(t, p.tokens - 1)) - static_cast<i64>(chunk) * rows, i64{-1}));
  // Summed within a sequence: what another one has changes no bit here.
  float sum = log2_decay;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const float before = __shfl_up_sync(~0u, sum, o);
    if (i % 32 >= o && i - o >= first) sum += before;
  }
  if (i % 32 == 31) warps[i / 32] = sum;
  __syncthreads();
  for (int w = max(first, 0) / 32; w < i / 32; ++w) sum += warps[w];
  const i64 at = static_cast<i64>(head) * p.padded() + t;
  p.decay[at] = sum, p.step[at] = step;
  if (head == 0) p.first[t] = first;
}

__device__ __forceinline__ std::uint32_t scaled(std::uint32_t pair, float a, float b) {
  return ptx::pack_bf16(__uint_as_float(pair << 16) * a, __uint_as_float(pair & 0xffff0000u) * b);
}

/// Forward: state = carry state + sum_j f_j dt_j k_j v_j^T. Reverse: gradient = carry gradient + sum_i e_i q_i dy_i^T.
/// Each is written before its chunk is added.
template <bool reverse>
__global__ void __launch_bounds__(scan_threads) scan(const Problem p) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ float weights[2][rows];
  const std::uint32_t tiles = ptx::shared_address(memory);
  const int across = (p.p + side - 1) / side, down = (p.n + side - 1) / side;
  const int tile = static_cast<int>(blockIdx.x) % (across * down),
            head = static_cast<int>(blockIdx.x) / (across * down);
  const int n0 = tile / across * side, p0 = tile % across * side, group = head / (p.heads / p.groups);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Rows left = p.keys(reverse ? p.q : p.k, group), right = p.values(reverse ? p.dy : p.v, head);
  left.base += n0, left.width = min(side, p.n - n0), right.base += p0, right.width = min(side, p.p - p0);
  const auto chunk_of = [&](int at) { return reverse ? p.chunks - 1 - at : at; };
  const auto start = [&](int at) {
    if (at < p.chunks) {
      const std::uint32_t to = tiles + static_cast<std::uint32_t>(at % 2) * (scan_bytes / 2);
      const i64 token = static_cast<i64>(chunk_of(at)) * rows;
      load_tile<rows, side, scan_threads>(to, left, token, p.tokens, p.vectors);
      load_tile<rows, side, scan_threads>(to + rows * side * 2, right, token, p.tokens, p.vectors);
    }
    ptx::copy_commit();
  };
  float state[side / 8][4] = {};
  start(0);
  for (int at = 0; at < p.chunks; ++at) {
    const int chunk = chunk_of(at), i = threadIdx.x;
    const float* decay = p.decay + static_cast<i64>(head) * p.padded() + static_cast<i64>(chunk) * rows;
    const int* first = p.first + static_cast<i64>(chunk) * rows;
    const float last = decay[rows - 1];
    const bool whole = first[rows - 1] < 0;
    const bool others = reverse ? !whole : first[0] != first[rows - 1];  // rows that do not count
    if constexpr (reverse) {
      weights[at % 2][i] = first[i] < 0 ? power_of_two(decay[i]) : 0.0f;
    } else {
      const float step = p.step[static_cast<i64>(head) * p.padded() + static_cast<i64>(chunk) * rows + i];
      weights[at % 2][i] = first[i] == first[rows - 1] ? step * power_of_two(last - decay[i]) : 0.0f;
    }
    bf16* to = p.state(reverse ? p.d_states : p.states, chunk, head);
    const float carry = whole ? power_of_two(last) : 0.0f;
#pragma unroll
    for (int j = 0; j < side / 8; ++j) {
      const int column = p0 + 8 * j + lane % 4 * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int n = n0 + warp * 16 + lane / 4 + 8 * r;
        if (n < p.n && column < p.pitch)
          store_pair(to + static_cast<i64>(n) * p.pitch, column, p.pitch, state[j][2 * r], state[j][2 * r + 1], true);
        state[j][2 * r] = passed(carry, state[j][2 * r]), state[j][2 * r + 1] = passed(carry, state[j][2 * r + 1]);
      }
    }
    __syncthreads();  // nobody reads the stage that is filled next
    start(at + 1);
    ptx::copy_wait<1>();
    __syncthreads();  // this chunk and its weights have landed
    const std::uint32_t a = tiles + static_cast<std::uint32_t>(at % 2) * (scan_bytes / 2), b = a + rows * side * 2;
    const float* w = weights[at % 2];
    if (others) {
      if (w[i] == 0) clear_row<side>(a, i), clear_row<side>(b, i);
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < rows; k += 16) {
      std::uint32_t keys[4];
      ptx::load_matrix_x4_transposed(keys,
                                     chunk_at<rows>(a, k + lane / 16 * 8 + lane % 8, warp * 16 + lane / 8 % 2 * 8));
      const int token = k + lane % 4 * 2;
      keys[0] = scaled(keys[0], w[token], w[token + 1]), keys[1] = scaled(keys[1], w[token], w[token + 1]);
      keys[2] = scaled(keys[2], w[token + 8], w[token + 9]), keys[3] = scaled(keys[3], w[token + 8], w[token + 9]);
#pragma unroll
      for (int j = 0; j < side; j += 16) {
        std::uint32_t both[4];
        ptx::load_matrix_x4_transposed(both, chunk_at<rows>(b, k + lane % 16, j + lane / 16 * 8));
        ptx::mma_bf16(state[j / 8], keys, {both[0], both[1]});
        ptx::mma_bf16(state[j / 8 + 1], keys, {both[2], both[3]});
      }
    }
  }
  ptx::copy_wait<0>();
}

template <bool reverse>
void run_scan(const Problem& p, const char* name, cudaStream_t stream) {
  const std::int64_t blocks =
      static_cast<std::int64_t>(p.heads) * ((p.n + side - 1) / side) * ((p.p + side - 1) / side);
  attention::launch(scan<reverse>, blocks, scan_threads, scan_bytes, stream, name, shape(p), p);
}

}  // namespace

std::string shape(const Problem& p) {
  return "tokens=" + std::to_string(p.tokens) + " heads=" + std::to_string(p.heads) + "/" + std::to_string(p.groups) +
         " widths=" + std::to_string(p.n) + "/" + std::to_string(p.p);
}

void gates(const Problem& p, cudaStream_t stream) {
  gates_kernel<<<static_cast<unsigned>(p.chunks) * static_cast<unsigned>(p.heads), rows, 0, stream>>>(p);
  kernels::check_launch("scan gates", shape(p));
}
void enter_states(const Problem& p, cudaStream_t stream) { run_scan<false>(p, "scan states", stream); }
void leave_gradients(const Problem& p, cudaStream_t stream) { run_scan<true>(p, "scan state gradients", stream); }

}  // namespace moeplan::cuda::ssd
