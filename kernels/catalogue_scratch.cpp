#include <algorithm>

#include "kernels/device_scratch.hpp"
#include "kernels/grouped_linear/scratch.hpp"
#include "kernels/kda/scratch.hpp"
#include "kernels/mamba1/scratch.hpp"
#include "kernels/mamba2/scratch.hpp"
#include "kernels/short_conv/scratch.hpp"

namespace moeplan {
namespace {

using i64 = std::int64_t;

/// Pieces begin on 256 bytes.
constexpr i64 padded(i64 bytes) { return (bytes + 255) / 256 * 256; }
i64 ceil_of(i64 n, i64 by) { return (n + by - 1) / by; }

/// Sums that end in another tensor come from at most so many blocks (kernels/base/rows.cuh), column sums from so many slices.
constexpr i64 kPartials = 528, kColumnSlices = 64;

template <class Op>
bool trains(const Op& op, Pass pass, Wants wants) {
  return pass == Pass::backward && wants.weight_grad && op.training == Training::full;
}

/// A weight that is stored quantised, read back to bf16.
i64 plain_weight(DType stored, i64 elements) { return stored == DType::bf16 ? 0 : padded(2 * elements); }

i64 scratch(const op::Linear& op, Pass pass, Wants wants) {
  const i64 weight = plain_weight(op.weight, op.in * op.out);
  if (pass == Pass::forward) return weight;
  const bool low = op.lora_rank > 0 && (wants.input_grad || wants.weight_grad);
  return (wants.input_grad ? weight : 0) + (low ? padded(2 * op.tokens * op.lora_rank) : 0) +
         (op.bias && op.training == Training::full ? 4 * kColumnSlices * op.out : 0);
}

i64 scratch(const op::HeadLinear& op, Pass pass, Wants wants) {
  const i64 weight = plain_weight(op.weight, op.heads * op.block * op.in);
  if (pass == Pass::forward) return weight;
  return (wants.input_grad ? weight : 0) + (op.lora_rank > 0 ? padded(2 * op.tokens * op.heads * op.lora_rank) : 0);
}

i64 scratch(const op::GroupedLinear& op, Pass pass, Wants wants) {
  return kernels::grouped_linear::scratch_of(op, pass, wants).bytes;
}

i64 scratch(const op::Attention& op, Pass pass, Wants wants) {
  if (pass == Pass::forward || op.tokens == 0) return 0;
  const i64 keys = op.kv_tokens ? op.kv_tokens : op.tokens;
  return 2 * padded(4 * op.tokens * op.heads) + (wants.input_grad ? padded(4 * keys * op.kv_heads * op.shared_key) : 0);
}

/// Row sums, and the keys' gradients as 64-bit integers behind 256 bytes of their scale.
i64 gathered(i64 tokens, i64 heads, i64 elements, Pass pass, Wants wants) {
  if (pass == Pass::forward || tokens == 0) return 0;
  return padded(4 * tokens * heads) + (wants.input_grad ? 256 + 8 * elements : 0);
}
i64 scratch(const op::SparseAttention& op, Pass pass, Wants wants) {
  const i64 keys = op.kv_tokens ? op.kv_tokens : op.tokens;
  return gathered(op.tokens, op.heads, keys * op.kv_heads * (op.d_qk + (op.latent ? 0 : op.d_v)), pass, wants);
}
i64 scratch(const op::CompressedAttention& op, Pass pass, Wants wants) {
  const i64 compressed = op.ratio ? op.compressed : 0;
  return gathered(op.tokens, op.heads, (op.tokens + compressed) * op.head_dim, pass, wants);
}

/// Where each query's keys begin and end, and a band of queries' scores of 64 MB.
i64 scratch(const op::Indexer& op, Pass pass, Wants) {
  constexpr i64 band_bytes = i64{64} << 20, block_keys = 256, block_queries = 16;
  if (pass == Pass::backward || op.tokens == 0) return 0;
  const i64 pitch = ceil_of(op.keys(), block_keys) * block_keys;
  const i64 fits = band_bytes / (4 * std::max<i64>(pitch, 1)) / block_queries * block_queries;
  return padded(8 * op.tokens) +
         4 * std::clamp<i64>(fits, block_queries, ceil_of(op.tokens, block_queries) * block_queries) * pitch;
}

i64 scratch(const op::Compress& op, Pass pass, Wants wants) {
  return trains(op, pass, wants) && op.gated ? 4 * 64 * op.ratio * (op.overlap ? 2 : 1) * op.width : 0;
}

/// The kernels' own cut (kernels/kda/scratch.hpp), and boundaries where equal lengths end in a short one.
i64 scratch(const op::Kda& op, Pass pass, Wants wants) {
  namespace kda = kernels::kda;
  const bool backward = pass == Pass::backward, known = op.head_dim == 64 || op.head_dim == 128;
  if (op.tokens == 0 || !known || op.heads > 128 || (op.bounded && op.lower_bound >= 0)) return 0;
  if (backward && wants == Wants{false, false}) return 0;
  const kda::Dims dims{.tokens = op.tokens,
                       .heads = static_cast<int>(op.heads),
                       .head_dim = static_cast<int>(op.head_dim),
                       .sequences = op.packed_sequences ? op.packed_sequences
                                                        : std::max<i64>(1, ceil_of(op.tokens, op.sequence_length))};
  const kda::Options options{.workspace_limit = static_cast<std::size_t>(kda::scratch_limit(dims))};
  const bool uneven = op.packed_sequences == 0 && op.tokens % op.sequence_length != 0;
  return kda::cut_of(dims, options, backward ? kda::Pass::backward : kda::Pass::forward).total +
         (uneven ? padded(8 * (dims.sequences + 1)) : 0);
}

/// Keys, queries and a gate as wide as KDA's, which does the rest.
i64 scratch(const op::GatedDeltaNet& op, Pass pass, Wants wants) {
  const i64 wide = padded(2 * op.tokens * op.v_heads * op.d_k), bias = padded(4 * op.v_heads * op.d_k);
  const bool shared = op.v_heads != op.k_heads, backward = pass == Pass::backward;
  i64 sum = (shared ? 2 * wide : 0) + wide + bias;
  if (backward && wants.input_grad) sum += (shared ? 2 * wide : 0) + wide;
  if (backward && wants.weight_grad) sum += bias;
  const op::Kda inner{.tokens = op.tokens,
                      .sequence_length = op.sequence_length,
                      .heads = op.v_heads,
                      .head_dim = op.d_k,
                      .packed_sequences = op.packed_sequences,
                      .training = op.training};
  return sum + padded(scratch(inner, pass, wants));
}

/// The kernels' own cuts (kernels/mamba2/scratch.hpp, kernels/mamba1/scratch.hpp).
i64 scan_scratch(const ssd::Dims& dims, Pass pass) {
  const bool held = dims.state <= ssd::most_width && dims.head_dim <= ssd::most_width && dims.heads % dims.groups == 0;
  return held ? ssd::layout(dims, pass == Pass::backward).total : 0;
}
i64 scratch(const op::Mamba2& op, Pass pass, Wants wants) {
  if (pass == Pass::backward && wants == Wants{false, false}) return 0;
  return scan_scratch({.tokens = op.tokens, .heads = op.heads, .groups = op.groups, .state = op.state, .head_dim = op.head_dim}, pass);
}
i64 scratch(const op::LightningAttention& op, Pass pass, Wants wants) {
  if (pass == Pass::backward && !wants.input_grad) return 0;
  return scan_scratch({.tokens = op.tokens, .heads = op.heads, .groups = op.heads, .state = op.head_dim, .head_dim = op.head_dim, .gated = false}, pass);
}
i64 scratch(const op::Mamba1& op, Pass pass, Wants wants) {
  if ((pass == Pass::backward && wants == Wants{false, false}) || op.state > mamba1::most_state) return 0;
  return mamba1::layout(op, pass == Pass::backward).total;
}

i64 scratch(const op::ShortConv& op, Pass pass, Wants wants) { return short_conv::scratch(op, pass, wants); }

i64 scratch(const op::HyperPre& op, Pass pass, Wants wants) {
  if (op.tokens == 0 || op.form == op::HyperForm::mean) return 0;
  if (pass == Pass::backward && wants == Wants{false, false}) return 0;
  const i64 c = op.coefficients(), width = op.streams * op.hidden;
  const i64 weight = padded(2 * 3 * c * width);
  if (pass == Pass::forward) return weight + padded(4 * 3 * c * std::min<i64>(op.tokens, 4096));
  const i64 back = padded(4 * c * op.tokens) + 2 * padded(2 * 3 * c * op.tokens) + padded(4 * op.tokens);
  return back + (wants.input_grad ? weight : 0) +
         (wants.weight_grad ? padded(4 * 2 * c * 64) + padded(4 * 3 * c * width) : 0);
}

i64 scratch(const op::Router& op, Pass pass, Wants wants) {
  if (pass == Pass::forward || wants == Wants{false, false}) return 0;
  const i64 rows = op.experts + op.zero_experts;
  return padded(4 * op.tokens * rows) + 2 * padded(2 * op.tokens * rows) + padded(4 * rows);
}

i64 scratch(const op::Permute& op, Pass pass, Wants) {
  if (pass == Pass::backward || op.tokens == 0) return 0;
  return padded(4 * (op.experts + 1)) + padded(4 * op.tokens * op.top_k) + 4 * ceil_of(op.tokens, 256) * op.experts;
}

i64 scratch(const op::Combine& op, Pass pass, Wants wants) {
  return pass == Pass::backward && wants.input_grad ? op.tokens * op.top_k : 0;
}

/// Chunks of logits in float with their running sums; sums in float of what many chunks add to.
i64 scratch(const op::CrossEntropy& op, Pass pass, Wants wants) {
  const bool backward = pass == Pass::backward;
  if (op.tokens == 0 || (backward && op.fused())) return 0;
  const i64 t = std::min(op.tokens, op.token_chunk), v = std::min(op.vocabulary, op.vocabulary_chunk), r = op.lora_rank;
  const bool dx = backward ? wants.input_grad : op.fused(), pair = r > 0, dw = trains(op, pass, wants);
  const bool dpair = backward && pair && wants.weight_grad;
  const i64 held = dw ? op.tokens : t;
  i64 sum = 0;
  const auto take = [&](i64 bytes, bool wanted = true) { sum += wanted ? padded(bytes) : 0; };
  take(4 * t * v), take(4);
  take(4 * 5 * t, !backward), take(4 * t, !backward && op.fused());
  take(4 * held * op.hidden, dx), take(2 * held * r, pair), take(4 * held * r, pair && backward), take(2 * held * r, pair && backward);
  take(4 * v * op.hidden, dw), take(4 * r * op.hidden, dpair), take(4 * op.vocabulary * r, dpair);
  take(4 * op.vocabulary, dw && op.bias), take(4 * kColumnSlices * v, dw && op.bias);
  return sum;
}

i64 scratch(const op::Embedding& op, Pass pass, Wants wants) { return trains(op, pass, wants) ? 4 * op.tokens : 0; }
i64 scratch(const op::RmsNorm& op, Pass pass, Wants wants) {
  return trains(op, pass, wants) && op.has_weight ? 4 * kPartials * op.hidden : 0;
}
i64 scratch(const op::GatedRmsNorm& op, Pass pass, Wants wants) {
  return trains(op, pass, wants) ? 4 * kPartials * op.hidden : 0;
}
i64 scratch(const op::LayerNorm& op, Pass pass, Wants wants) {
  return trains(op, pass, wants) ? 8 * kPartials * op.hidden : 0;
}
i64 scratch(const op::AttentionResidual& op, Pass pass, Wants wants) {
  return trains(op, pass, wants) ? 4 * kPartials * op.hidden : 0;
}
i64 scratch(const op::GradNorm&, Pass pass, Wants) { return pass == Pass::forward ? 8 * 1056 : 0; }

/// Their kernels work on their operands alone.
i64 scratch(const op::Activate&, Pass, Wants) { return 0; }
i64 scratch(const op::Add&, Pass, Wants) { return 0; }
i64 scratch(const op::AdamW&, Pass, Wants) { return 0; }
i64 scratch(const op::Cast&, Pass, Wants) { return 0; }
i64 scratch(const op::Dequantise&, Pass, Wants) { return 0; }
i64 scratch(const op::Glu&, Pass, Wants) { return 0; }
i64 scratch(const op::HyperExpand&, Pass, Wants) { return 0; }
i64 scratch(const op::HyperPost&, Pass, Wants) { return 0; }
i64 scratch(const op::Join&, Pass, Wants) { return 0; }
i64 scratch(const op::MulGate&, Pass, Wants) { return 0; }
i64 scratch(const op::Quantise&, Pass, Wants) { return 0; }
i64 scratch(const op::Rope&, Pass, Wants) { return 0; }
i64 scratch(const op::Split&, Pass, Wants) { return 0; }

template <class T>
constexpr bool has_kernels = false;
#define MOEPLAN_CUDA_OPERATOR(Operator) \
  template <>                           \
  constexpr bool has_kernels<op::Operator> = true;
#include "kernels/cuda_list.inc"
#undef MOEPLAN_CUDA_OPERATOR

}  // namespace

Bytes device_workspace(const Op& op, Pass pass, Wants wants) {
  if (pass == Pass::backward) wants = possible(op, wants);
  return std::visit([&]<class T>(const T& o) -> Bytes {
    if constexpr (has_kernels<T>) return {scratch(o, pass, wants)};
    else return workspace(op, pass, wants);
  }, op);
}

}  // namespace moeplan
