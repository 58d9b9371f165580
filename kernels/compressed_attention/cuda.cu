/// `compressed_attention` on the GPU: kernels/sparse_attention/gathered.cuh has the mapping; a key is its own value.

#include <algorithm>
#include <climits>
#include <cmath>

#include "kernels/cuda.hpp"
#include "kernels/sparse_attention/gathered.cuh"

namespace moeplan::cuda {
namespace {

using Op = op::CompressedAttention;

std::int64_t compressed_of(const Op& op) { return op.ratio ? op.compressed : 0; }
std::int64_t delta_bytes(const Op& op) { return aligned_bytes(4 * op.tokens * op.heads); }
gathered::Accumulators accumulators(const Op& op) { return {(op.tokens + compressed_of(op)) * op.head_dim, 0}; }

gathered::Problem problem(const Op& op, const Frame& f) {
  gathered::Problem p{};
  p.q = f["q"].as<bf16>(), p.plain = f["kv"].as<bf16>(), p.chosen = f["kv_compressed"].as<bf16>();
  p.indices = f["indices"].as<std::int32_t>(), p.sinks = f["sinks"].as<float>(), p.y = f["y"].as<bf16>(),
  p.lse = f["lse"].as<float>();
  p.dy = f.d("y").as<bf16>(), p.dq = f.d("q").as<bf16>();
  p.queries = static_cast<int>(op.tokens), p.plain_rows = p.queries,
  p.chosen_rows = static_cast<int>(compressed_of(op));
  p.heads = p.group = static_cast<int>(op.heads), p.d_qk = p.d_v = static_cast<int>(op.head_dim);
  p.topk = static_cast<int>(op.topk), p.window = static_cast<int>(std::min<std::int64_t>(op.window, INT_MAX)),
  p.ratio = static_cast<int>(std::min<std::int64_t>(op.ratio, INT_MAX)),
  p.length = static_cast<int>(std::min<std::int64_t>(op.sequence_length, INT_MAX));
  p.scale = static_cast<float>(op.scale > 0 ? op.scale : 1 / std::sqrt(static_cast<double>(op.head_dim)));
  p.vectors = p.d_qk % 8 == 0 && aligned({p.q, p.plain, p.chosen, p.y, p.dy, p.dq});
  return p;
}

}  // namespace

void forward(const Op& op, const Frame& f) {
  if (op.tokens > 0) gathered::forward(problem(op, f), f.stream());
}

void backward(const Op& op, const Frame& f) {
  bf16 *dkv = f.d("kv").as<bf16>(), *dcompressed = f.d("kv_compressed").as<bf16>();
  if (op.tokens == 0) {
    for (const char* name : {"kv_compressed", "sinks"})
      if (const Tensor d = f.d(name); d && d.size() > 0)
        kernels::check(cudaMemsetAsync(d.data, 0, static_cast<std::size_t>(d.size() * (d.dtype == DType::f32 ? 4 : 2)),
                                       f.stream()),
                       "clear a gradient of compressed_attention");
    return;
  }
  gathered::Problem p = problem(op, f);
  auto* const delta = f.scratch<float>();
  gathered::row_sums(p, delta, f.stream());
  p.delta = delta;
  if (float* const dsinks = f.d("sinks").as<float>()) gathered::sink_gradient(p, dsinks, f.stream());
  if (p.dq == nullptr && dkv == nullptr && dcompressed == nullptr) return;
  if (dkv != nullptr || dcompressed != nullptr)
    gathered::open(p, accumulators(op), f.scratch<char>() + delta_bytes(op), f.stream());
  gathered::backward(p, f.stream());
  gathered::close(p, p.dkeys, op.tokens * op.head_dim, dkv, f.stream());
  gathered::close(p, p.dkeys + op.tokens * op.head_dim, compressed_of(op) * op.head_dim, dcompressed, f.stream());
}

std::string refusal(const Op& op) {
  if (op.head_dim > 512) return "heads of " + std::to_string(op.head_dim) + " columns; its CUDA kernels hold 512";
  if (op.tokens * op.heads > INT_MAX || op.tokens + compressed_of(op) > (1 << 30))
    return std::to_string(op.tokens) + " queries in " + std::to_string(op.heads) +
           " heads are more than its CUDA kernels count: use more micro-batches";
  return {};
}

/// Backward: row sums, and eight bytes for each element of the keys' gradients.
std::int64_t scratch(const Op& op, Pass pass, Wants wants) {
  if (pass == Pass::forward || op.tokens == 0) return 0;
  return delta_bytes(op) + (wants.input_grad ? accumulators(op).bytes() : 0);
}

}  // namespace moeplan::cuda
