/// \file
/// Attention on the host: refusals, scratch, and which kernels a call takes.

#include <algorithm>
#include <climits>
#include <cmath>

#include "kernels/attention/launch.cuh"
#include "kernels/attention/op.hpp"
#include "kernels/attention/wide.hpp"
#include "kernels/cuda.hpp"

namespace moeplan::cuda {
namespace attention {

std::string shape(const Problem& p) {
  return "queries=" + std::to_string(p.queries) + " keys=" + std::to_string(p.keys) +
         " sequences=" + std::to_string(p.sequences) + " heads=" + std::to_string(p.heads) + "/" +
         std::to_string(p.kv_heads) + " d=" + std::to_string(p.d_qk) + "/" + std::to_string(p.d_v);
}

Problem in_sections(Problem p, int heads, int tiles, double bytes) {
  const double fits = 32e6 / std::max(bytes, 1.0), fills = 264.0 / std::max(tiles, 1);
  const int least = std::clamp(static_cast<int>(std::ceil(std::min(std::max(fits, fills), 1e6))), 1, heads),
            sections = heads / least;
  p.section = (heads + sections - 1) / sections;  // of one size, so that none is left with few blocks
  return p;
}
double key_bytes(const Problem& p) { return 2.0 * p.keys * (p.d_qk + p.d_v) / p.group; }
double query_bytes(const Problem& p) { return 2.0 * p.queries * (p.d_qk + p.d_v) * p.group; }

namespace {

std::int64_t keys_of(const op::Attention& op) { return op.kv_tokens ? op.kv_tokens : op.tokens; }
std::int64_t sequences_of(const op::Attention& op) {
  return op.packed_sequences ? op.packed_sequences : (keys_of(op) + op.sequence_length - 1) / op.sequence_length;
}

Problem problem(const op::Attention& op, const Frame& f) {
  Problem p{.q = f["q"].as<bf16>(),
            .k = f["k"].as<bf16>(),
            .k_shared = f["k_shared"].as<bf16>(),
            .v = f["v"].as<bf16>(),
            .starts = f["starts"].as<std::int32_t>(),
            .sinks = f["sinks"].as<float>(),
            .y = f["y"].as<bf16>(),
            .lse = f["lse"].as<float>(),
            .dy = f.d("y").as<bf16>(),
            .dq = f.d("q").as<bf16>(),
            .dk = f.d("k").as<bf16>(),
            .dk_shared = f.d("k_shared").as<bf16>(),
            .dv = f.d("v").as<bf16>(),
            .dsinks = f.d("sinks").as<float>()};
  p.queries = static_cast<int>(op.tokens), p.keys = static_cast<int>(keys_of(op)),
  p.sequences = static_cast<int>(sequences_of(op));
  p.length = static_cast<int>(std::min<std::int64_t>(op.sequence_length, INT_MAX));
  p.missing = op.kv_tokens ? static_cast<int>((op.kv_tokens - op.tokens) / p.sequences) : 0;
  p.heads = static_cast<int>(op.heads), p.kv_heads = static_cast<int>(op.kv_heads), p.group = p.heads / p.kv_heads;
  p.d_qk = static_cast<int>(op.d_qk), p.shared = static_cast<int>(op.shared_key), p.own = p.d_qk - p.shared,
  p.d_v = static_cast<int>(op.d_v);
  p.window = op.window > 0 && op.window < INT_MAX ? static_cast<int>(op.window) : INT_MAX;
  p.causal = op.causal;
  p.scale = static_cast<float>(op.scale > 0 ? op.scale : 1 / std::sqrt(static_cast<double>(op.d_qk)));
  p.cap = static_cast<float>(op.softcap);
  p.hopper = f.device().compute_capability == 90;
  p.vectors = p.own % 8 == 0 && p.shared % 8 == 0 && p.d_v % 8 == 0 &&
              aligned({p.q, p.k, p.k_shared, p.v, p.y, p.dy, p.dq, p.dk, p.dk_shared, p.dv});
  return p;
}

/// Bytes rounded up so that what follows is aligned.
std::int64_t padded(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }
std::int64_t row_bytes(const op::Attention& op) { return padded(4 * op.tokens * op.heads); }
std::int64_t shared_bytes(const op::Attention& op) { return padded(4 * keys_of(op) * op.kv_heads * op.shared_key); }

}  // namespace
}  // namespace attention

void forward(const op::Attention& op, const Frame& f) {
  if (op.tokens == 0) return;
  const attention::Problem p = attention::problem(op, f);
  if (p.starts != nullptr) attention::clear_outside(p, false, f.stream());
  if (attention::is_wide(p))
    attention::forward_wide(p, f.stream());
  else if (attention::hopper_takes(p))
    attention::forward_hopper(p, f.stream());
  else
    attention::forward_tiles(p, f.stream());
}

void backward(const op::Attention& op, const Frame& f) {
  attention::Problem p = attention::problem(op, f);
  if (op.tokens == 0) {  // keys without queries have no gradient
    const auto clear = [&](const Tensor& tensor, int bytes) {
      if (tensor && tensor.size() > 0)
        kernels::check(cudaMemsetAsync(tensor.data, 0, static_cast<std::size_t>(tensor.size() * bytes), f.stream()),
                       "clear a gradient of attention");
    };
    clear(f.d("k"), 2), clear(f.d("k_shared"), 2), clear(f.d("v"), 2), clear(f.d("sinks"), 4);
    return;
  }
  char* scratch = f.scratch<char>();
  p.lse_rows = reinterpret_cast<float*>(scratch),
  p.delta_rows = reinterpret_cast<float*>(scratch + attention::row_bytes(op));
  if (p.dk_shared != nullptr) p.shared_parts = reinterpret_cast<float*>(scratch + 2 * attention::row_bytes(op));
  if (p.starts != nullptr) attention::clear_outside(p, true, f.stream());
  attention::prepare_rows(p, f.stream());
  if (p.dsinks != nullptr) attention::sink_gradient(p, f.stream());
  const bool wide = attention::is_wide(p), hopper = !wide && attention::hopper_takes(p),
             keys = p.dk != nullptr || p.dv != nullptr || p.shared_parts != nullptr;
  if (p.dq != nullptr && wide)
    attention::backward_wide_q(p, f.stream());
  else if (p.dq != nullptr && hopper)
    attention::backward_hopper_q(p, f.stream());
  else if (p.dq != nullptr)
    attention::backward_tiles_q(p, f.stream());
  if (keys && wide)
    attention::backward_wide_k(p, f.stream());
  else if (keys && hopper)
    attention::backward_hopper_k(p, f.stream());
  else if (keys)
    attention::backward_tiles_k(p, f.stream());
  if (p.dk_shared != nullptr) attention::sum_shared(p, f.stream());
}

std::string refusal(const op::Attention& op) {
  const std::int64_t keys = attention::keys_of(op), sequences = attention::sequences_of(op);
  const auto numbers = [](std::int64_t a, const char* between, std::int64_t b) {
    return std::to_string(a) + between + std::to_string(b);
  };
  const bool wide = op.d_qk > 256 || op.d_v > 256;
  if (op.d_qk > 512 || op.d_v > 512)
    return "heads of " + numbers(op.d_qk, " and ", op.d_v) + " columns; its kernels hold at most 512";
  if (wide && op.shared_key > 0)
    return "heads of " + numbers(op.d_qk, " and ", op.d_v) + " columns beside a shared key; its kernels hold at most 256 there";
  if (op.heads % op.kv_heads != 0)
    return numbers(op.heads, " query heads are no multiple of ", op.kv_heads) + " key heads";
  if (op.shared_key >= op.d_qk) return numbers(op.shared_key, " shared columns leave none of the key's ", op.d_qk);
  if (keys < op.tokens) return numbers(op.tokens, " queries and only ", keys) + " keys";
  if (keys > (1 << 30)) return std::to_string(keys) + " keys; its kernels count to 2^30";
  if (sequences > 0 && (keys - op.tokens) % sequences != 0)
    return numbers(keys - op.tokens, " keys more than queries do not divide among ", sequences) + " sequences";
  const std::int64_t blocks = wide ? 4 * op.heads : op.heads;  // of a tile
  if ((op.tokens / 64 + sequences) * blocks > INT_MAX || (keys / 64 + sequences) * blocks > INT_MAX)
    return numbers(op.tokens, " queries in ", op.heads) + " heads are more tiles than a grid has blocks";
  return {};
}

/// Backward: the log-sum-exps and row sums by head, and each key head's part of the shared key's gradient.
std::int64_t scratch(const op::Attention& op, Pass pass, Wants wants) {
  if (pass == Pass::forward || op.tokens == 0) return 0;
  return 2 * attention::row_bytes(op) + (wants.input_grad ? attention::shared_bytes(op) : 0);
}

}  // namespace moeplan::cuda
