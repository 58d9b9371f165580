/// `router` as the catalogue calls it: logits by cuBLASLt straight into `scores`, where the router's kernel (cuda.hpp) turns them into
/// scores as it chooses; backward from the scores: the logits' gradient in fp32, then dx = dz W, dW = dz^T x and db = sum dz. A choice hangs on its
/// logits: sums leave the tensor cores every 2,048 of h. A gradient of logits enters its products as two bf16, its rounded value and the rest (16 bits of mantissa).
/// Bytes forward 2 t h + 8 t e and 8 t e for every further 2,048 of h, backward 6 t h for each of dx and dW and 12 t e; flops 2 t h e a product, twice that backward.

#include <algorithm>

#include "kernels/cuda_frame.hpp"
#include "kernels/router/cuda.hpp"
#include "kernels/router/op.hpp"
#include "kernels/router/sparse_mixer.cuh"

namespace moeplan::cuda {
namespace {

namespace router = kernels::router;

i64 rows_of(const op::Router& op) { return op.experts + op.zero_experts; }
std::string shape(const op::Router& op) { return "tokens=" + std::to_string(op.tokens) + " hidden=" + std::to_string(op.hidden) + " experts=" + std::to_string(rows_of(op)); }

router::Dims dims_of(const op::Router& op, double auxiliary = 0) {
  const router::Score score = op.score == RouterScore::sigmoid ? router::Score::sigmoid : op.score == RouterScore::sqrt_softplus ? router::Score::sqrt_softplus : router::Score::softmax;
  const bool grouped = op.groups > 1 && op.hash_vocabulary == 0;
  return {.tokens = static_cast<int>(op.tokens), .experts = static_cast<int>(rows_of(op)), .top_k = static_cast<int>(op.top_k), .groups = grouped ? static_cast<int>(op.groups) : 1,
          .kept_groups = grouped ? static_cast<int>(op.top_groups) : 1, .score = score, .normalise = op.normalise, .scale = static_cast<float>(op.route_scale),
          .auxiliary = static_cast<float>(auxiliary), .pair_ranks = op.score_bias};
}

/// How often each expert was chosen; integers, so that atomics keep no order.
__global__ void __launch_bounds__(256) count_choices(i64 choices, int experts, const int* indices, int* counts) {
  const i64 i = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (i < choices && indices[i] >= 0 && indices[i] < experts) atomicAdd(&counts[indices[i]], 1);
}

/// z[row, e] = b[e].
__global__ void __launch_bounds__(256) spread_bias(i64 count, int experts, const bf16* bias, float* z) {
  const i64 i = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (i < count) z[i] = widened(bias[i % experts]);
}

/// v = high + low, to 16 bits of mantissa.
__global__ void __launch_bounds__(256) halve(i64 count, const float* v, bf16* high, bf16* low) {
  const i64 i = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= count) return;
  high[i] = narrowed<bf16>(v[i]);
  low[i] = narrowed<bf16>(v[i] - widened(high[i]));
}

unsigned blocks_of(i64 count) { return static_cast<unsigned>((count + 255) / 256); }

/// z = x W^T (+ b), fp32.
void project(const op::Router& op, const Frame& f, float* z) {
  constexpr i64 most = 2048;
  const i64 rows = rows_of(op);
  if (op.bias) {
    spread_bias<<<blocks_of(op.tokens * rows), 256, 0, f.stream()>>>(op.tokens * rows, static_cast<int>(rows), f["b"].as<bf16>(), z);
    kernels::check_launch("router bias", shape(op));
  }
  for (i64 k = 0; k < op.hidden; k += most) {
    const i64 columns = std::min(most, op.hidden - k);
    f.products().multiply({f["x"].as<bf16>() + k, op.tokens, columns, false, DType::bf16, op.hidden}, {f["w"].as<bf16>() + k, rows, columns, true, DType::bf16, op.hidden}, z, DType::f32, 1,
                          op.bias || k > 0 ? 1.0f : 0.0f, f.stream());
  }
}

/// out[c] = sum over rows of dz[row, c], fp32 in a fixed order: 32 columns a block, 8 parts of the rows.
__global__ void __launch_bounds__(256) sum_columns(i64 rows, i64 columns, const float* dz, bf16* out) {
  __shared__ float parts[8][32];
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
  const i64 c = static_cast<i64>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (c < columns)
#pragma unroll 4
    for (i64 row = part; row < rows; row += 8) sum += dz[row * columns + c];
  parts[part][lane] = sum;
  __syncthreads();
  if (part != 0 || c >= columns) return;
#pragma unroll
  for (int i = 1; i < 8; ++i) sum += parts[i][lane];
  out[c] = narrowed<bf16>(sum);
}

router_detail::SparseMixer mixer_of(const op::Router& op, const Frame& f) {
  return {.tokens = op.tokens, .experts = static_cast<int>(rows_of(op)), .top_k = static_cast<int>(op.top_k), .jitter = static_cast<float>(op.jitter),
          .scale = static_cast<float>(op.route_scale), .logits = f["logits"].as<float>()};
}
unsigned mixer_blocks(const op::Router& op) { return static_cast<unsigned>((op.tokens + router_detail::mixer_warps - 1) / router_detail::mixer_warps); }

}  // namespace

void forward(const op::Router& op, const Frame& f) {
  float* scores = f["scores"].as<float>();
  const i64 rows = rows_of(op);
  const bool mixes = op.score == RouterScore::sparse_mixer;
  if (op.tokens > 0) project(op, f, mixes ? f["logits"].as<float>() : scores);
  if (mixes) {
    kernels::check(cudaMemsetAsync(f["counts"].as<std::int32_t>(), 0, static_cast<std::size_t>(4 * rows), f.stream()), "router forward [" + shape(op) + "]: counts");
    if (op.tokens == 0) return;
    router_detail::mix_forward<<<mixer_blocks(op), router_detail::mixer_warps * 32, 0, f.stream()>>>(mixer_of(op, f), scores, f["indices"].as<std::int32_t>(), f["weights"].as<float>(),
                                                                                                     f["counts"].as<std::int32_t>());
    return kernels::check_launch("router forward", shape(op));
  }
  router::Forward call{.dims = dims_of(op), .logits = scores, .bias = f["score_bias"].as<float>(), .experts = f["indices"].as<std::int32_t>(), .weights = f["weights"].as<float>(),
                       .counts = f["counts"].as<std::int32_t>(), .scores = scores};
  if (op.hash_vocabulary > 0) {
    call.bias = nullptr;
    call.ids = f["ids"].as<std::int32_t>(), call.table = f["table"].as<std::int32_t>(), call.vocabulary = static_cast<int>(op.hash_vocabulary);
  }
  if (op.zero_experts > 0) call.identities = static_cast<int>(op.zero_experts), call.identity_weight = f["zero_weight"].as<float>();
  router::forward(call, f.stream());
}

void backward(const op::Router& op, const Frame& f) {
  const i64 rows = rows_of(op);
  bf16 *dx = f.d("x").as<bf16>(), *dw = f.d("w").as<bf16>(), *db = f.d("b").as<bf16>();
  float* dz = f.scratch<float>();
  bf16* const high = reinterpret_cast<bf16*>(f.scratch<char>() + aligned_bytes(4 * op.tokens * rows));
  bf16* const low = high + aligned_bytes(2 * op.tokens * rows) / 2;
  if (op.tokens == 0) {
    if (dw != nullptr) kernels::check(cudaMemsetAsync(dw, 0, static_cast<std::size_t>(2 * rows * op.hidden), f.stream()), "router backward [" + shape(op) + "]");
    if (db != nullptr) kernels::check(cudaMemsetAsync(db, 0, static_cast<std::size_t>(2 * rows), f.stream()), "router backward [" + shape(op) + "]");
    return;
  }
  const auto* indices = f["indices"].as<std::int32_t>();
  const bool mixes = op.score == RouterScore::sparse_mixer;
  const float* dweights = f.d("weights").as<float>();
  router::Backward call{.dims = dims_of(op, f.ragged().auxiliary), .scores = f["scores"].as<float>(), .experts = indices, .dweights = mixes ? nullptr : dweights,
                        .identities = static_cast<int>(op.zero_experts), .didentity = f.d("zero_weight").as<float>(), .dlogits = dz};
  if (f.ragged().auxiliary != 0 && f.ragged().rows_of_expert != nullptr) {   // the choices of other ranks' tokens too
    call.counts = f.ragged().rows_of_expert;
  } else if (f.ragged().auxiliary != 0) {
    int* counts = reinterpret_cast<int*>(f.scratch<char>() + aligned_bytes(4 * op.tokens * rows) + 2 * aligned_bytes(2 * op.tokens * rows));
    kernels::check(cudaMemsetAsync(counts, 0, static_cast<std::size_t>(4 * rows), f.stream()), "router backward [" + shape(op) + "]: counts");
    const i64 choices = op.tokens * op.top_k;
    count_choices<<<blocks_of(choices), 256, 0, f.stream()>>>(choices, static_cast<int>(rows), indices, counts);
    kernels::check_launch("router counts", shape(op));
    call.counts = counts;
  }
  router::backward(call, f.stream());
  if (mixes && dweights != nullptr) {   // what the balancing loss gave, and the weights' share
    router_detail::mix_backward<<<mixer_blocks(op), router_detail::mixer_warps * 32, 0, f.stream()>>>(mixer_of(op, f), indices, dweights, dz);
    kernels::check_launch("router backward", shape(op));
  }
  if (dx != nullptr || dw != nullptr) {
    halve<<<blocks_of(op.tokens * rows), 256, 0, f.stream()>>>(op.tokens * rows, dz, high, low);
    kernels::check_launch("router gradient of the logits", shape(op));
  }
  for (const bf16* part : {low, high}) {   // the small one first: its rounding is of no account
    const float before = part == low ? 0.0f : 1.0f;
    if (dx != nullptr) f.products().multiply({part, op.tokens, rows}, {f["w"].data, rows, op.hidden}, dx, DType::bf16, 1, before, f.stream());
    if (dw != nullptr) f.products().multiply({part, op.tokens, rows, true}, {f["x"].data, op.tokens, op.hidden}, dw, DType::bf16, 1, before, f.stream());
  }
  if (db != nullptr) {
    sum_columns<<<static_cast<unsigned>((rows + 31) / 32), 256, 0, f.stream()>>>(op.tokens, rows, dz, db);
    kernels::check_launch("router gradient of the bias", shape(op));
  }
}

std::string refusal(const op::Router& op) {
  const auto number = [](i64 n) { return std::to_string(n); };
  const bool grouped = op.groups > 1 && op.hash_vocabulary == 0;
  if (rows_of(op) > 1024) return number(rows_of(op)) + " experts; its CUDA kernel chooses among up to 1024";
  if (op.top_k > 32 || op.top_k > rows_of(op)) return number(op.top_k) + " choices among " + number(rows_of(op)) + " experts; its CUDA kernel makes up to 32, and not more than there are";
  if (op.score == RouterScore::sparse_mixer && (grouped || op.zero_experts > 0 || op.hash_vocabulary > 0 || op.score_bias))
    return "sparse_mixer beside groups, identity experts, a hash table or a score bias; it has none of them";
  if (grouped && op.zero_experts > 0) return "groups beside identity experts; its CUDA kernel has one or the other";
  if (grouped && (op.groups > 32 || op.experts % op.groups != 0)) return number(op.groups) + " groups of " + number(op.experts) + " experts; its CUDA kernel takes up to 32 that divide them";
  if (grouped && (op.top_groups > op.groups || op.top_k > op.experts / op.groups * op.top_groups)) return number(op.top_groups) + " groups that cannot hold " + number(op.top_k) + " choices";
  constexpr i64 most = std::numeric_limits<std::int32_t>::max();
  if (op.tokens > most / op.top_k || op.hidden > most || op.hash_vocabulary > most) return "sizes of " + shape(op) + "; they are counted in 31 bits: use more micro-batches";
  return {};
}
std::int64_t scratch(const op::Router& op, Pass pass, Wants wants) {
  if (pass == Pass::forward || wants == Wants{false, false}) return 0;
  return aligned_bytes(4 * op.tokens * rows_of(op)) + 2 * aligned_bytes(2 * op.tokens * rows_of(op)) + aligned_bytes(4 * rows_of(op));
}

}  // namespace moeplan::cuda
