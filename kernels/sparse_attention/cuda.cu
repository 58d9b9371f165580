/// `sparse_attention` on the GPU: gathered.cuh has the mapping. Heads wider than 128 take the latent form's padded
/// widths (576 and 512).

#include <algorithm>
#include <climits>
#include <cmath>

#include "kernels/cuda.hpp"
#include "kernels/sparse_attention/gathered.cuh"

namespace moeplan::cuda {
namespace {

using Op = op::SparseAttention;

std::int64_t keys_of(const Op& op) { return op.kv_tokens ? op.kv_tokens : op.tokens; }
std::int64_t delta_bytes(const Op& op) { return aligned_bytes(4 * op.tokens * op.heads); }
gathered::Accumulators accumulators(const Op& op) {
  return {keys_of(op) * op.kv_heads * op.d_qk, op.latent ? 0 : keys_of(op) * op.kv_heads * op.d_v};
}

gathered::Problem problem(const Op& op, const Frame& f) {
  gathered::Problem p{};
  p.q = f["q"].as<bf16>(), p.plain = p.chosen = f["kv"].as<bf16>(), p.values = op.latent ? nullptr : f["v"].as<bf16>();
  p.indices = f["indices"].as<std::int32_t>(), p.sinks = f["sinks"].as<float>(), p.y = f["y"].as<bf16>(),
  p.lse = f["lse"].as<float>();
  p.dy = f.d("y").as<bf16>(), p.dq = f.d("q").as<bf16>();
  p.queries = static_cast<int>(op.tokens), p.chosen_rows = static_cast<int>(keys_of(op));
  p.heads = static_cast<int>(op.heads), p.kv_heads = static_cast<int>(op.kv_heads), p.group = p.heads / p.kv_heads;
  p.d_qk = static_cast<int>(op.d_qk), p.d_v = static_cast<int>(op.d_v), p.topk = static_cast<int>(op.topk),
  p.block = static_cast<int>(op.block);
  p.missing = static_cast<int>(keys_of(op) - op.tokens), p.below_self = true;
  p.scale = static_cast<float>(op.scale > 0 ? op.scale : 1 / std::sqrt(static_cast<double>(op.d_qk)));
  p.vectors = p.d_qk % 8 == 0 && p.d_v % 8 == 0 && aligned({p.q, p.chosen, p.values, p.y, p.dy, p.dq});
  return p;
}

}  // namespace

void forward(const Op& op, const Frame& f) {
  if (op.tokens > 0) gathered::forward(problem(op, f), f.stream());
}

void backward(const Op& op, const Frame& f) {
  bf16 *dkv = f.d("kv").as<bf16>(), *dv = f.d("v").as<bf16>();
  if (op.tokens == 0) {  // keys without queries have no gradient
    for (const char* name : {"kv", "v", "sinks"})
      if (const Tensor d = f.d(name); d && d.size() > 0)
        kernels::check(cudaMemsetAsync(d.data, 0, static_cast<std::size_t>(d.size() * (d.dtype == DType::f32 ? 4 : 2)),
                                       f.stream()),
                       "clear a gradient of sparse_attention");
    return;
  }
  gathered::Problem p = problem(op, f);
  auto* const delta = f.scratch<float>();
  gathered::row_sums(p, delta, f.stream());
  p.delta = delta;
  if (float* const dsinks = f.d("sinks").as<float>()) gathered::sink_gradient(p, dsinks, f.stream());
  if (p.dq == nullptr && dkv == nullptr && dv == nullptr) return;
  const gathered::Accumulators sizes = accumulators(op);
  if (dkv != nullptr || dv != nullptr) gathered::open(p, sizes, f.scratch<char>() + delta_bytes(op), f.stream());
  gathered::backward(p, f.stream());
  gathered::close(p, p.dkeys, sizes.keys, dkv, f.stream());
  gathered::close(p, p.dvalues, sizes.values, dv, f.stream());
}

std::string refusal(const Op& op) {
  const auto numbers = [](std::int64_t a, const char* between, std::int64_t b) {
    return std::to_string(a) + between + std::to_string(b);
  };
  const std::int64_t most_qk = op.latent ? 576 : 128, most_v = op.latent ? 512 : 128;
  if (op.d_qk > most_qk || op.d_v > most_v)
    return "heads of " + numbers(op.d_qk, " and ", op.d_v) + " columns; its CUDA kernels hold " +
           numbers(most_qk, " and ", most_v) + (op.latent ? "" : " where values are their own");
  if (op.latent && op.d_v > op.d_qk) return "values of " + numbers(op.d_v, " columns in keys of ", op.d_qk);
  if (op.heads % op.kv_heads != 0)
    return numbers(op.heads, " query heads are no multiple of ", op.kv_heads) + " key heads";
  if (keys_of(op) < op.tokens) return numbers(op.tokens, " queries and only ", keys_of(op)) + " keys";
  if (keys_of(op) > (1 << 30) || op.topk > (1 << 30) / op.block)
    return numbers(keys_of(op), " keys, ", op.topk * op.block) + " chosen; its CUDA kernels count to 2^30";
  if (op.tokens * op.heads > INT_MAX)
    return numbers(op.tokens, " queries in ", op.heads) +
           " heads are more tiles than a grid has blocks: use more micro-batches";
  return {};
}

/// Backward: row sums, and eight bytes for each element of the keys' and values' gradients.
std::int64_t scratch(const Op& op, Pass pass, Wants wants) {
  if (pass == Pass::forward || op.tokens == 0) return 0;
  return delta_bytes(op) + (wants.input_grad ? accumulators(op).bytes() : 0);
}

}  // namespace moeplan::cuda
