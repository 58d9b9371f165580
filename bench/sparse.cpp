/// \file
/// Keys chosen query by query, Gated DeltaNet and hyper-connections at the shapes of DeepSeek-V3.2, DeepSeek-V4, GLM-5,
/// Qwen3-Next and Qwen3.5: cold-cache medians, the operations of the contract a second, and its bytes a second. Indices
/// are the indexer's of random scores: any keys up to the query, in ascending order.

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "bench/cuda_timing.hpp"

namespace {

using namespace moeplan;
using namespace moeplan::bench;

/// An ascending choice of topk keys of those before each query, every stride-th of them from a shifting start.
std::vector<std::int32_t> choice(std::int64_t tokens, std::int64_t topk, std::int64_t visible_ratio) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(tokens * topk), -1);
  std::mt19937 random(5);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t visible = (t + 1) / visible_ratio, n = std::min(visible, topk);
    std::int64_t needed = n;
    for (std::int64_t k = 0, at = 0; k < visible && needed > 0; ++k)
      if (static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(visible - k)) < needed)
        out[static_cast<std::size_t>(t * topk + at++)] = static_cast<std::int32_t>(k), --needed;
  }
  return out;
}

void report(const Op& op, Pass pass, DeviceBuffer& flush, cuda::Products& products) {
  const Operands list = operands(op);
  const Wants wants = possible(op, {true, true});
  if (pass == Pass::backward && wants == Wants{false, false}) return;
  std::vector<DeviceBuffer> memory;
  std::vector<void*> values, gradients;
  const auto buffer = [&](const Operand& o) -> void* {
    memory.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(o.bytes().value, 16)));
    fill(o, memory.back());
    return memory.back().get();
  };
  for (const Operand& o : list) {
    values.push_back(buffer(o));
    if (o.name == "indices" && o.role == Role::index) {
      const auto* compressed = std::get_if<op::CompressedAttention>(&op);
      memory.back().upload(
          std::span<const std::int32_t>(choice(o.shape[0], o.shape[1], compressed != nullptr ? compressed->ratio : 1)));
    }
    const bool leaves =
        (o.role == Role::input && wants.input_grad) || (o.role == Role::weight && o.trained && wants.weight_grad);
    gradients.push_back(pass == Pass::backward && (o.role == Role::output || leaves) ? buffer(o) : nullptr);
  }
  const DeviceBuffer scratch(static_cast<std::size_t>(
      std::max(cuda::workspace(op, pass, wants).value, cuda::workspace(op, Pass::forward, wants).value)));
  cuda::forward(op, values, scratch.get(), nullptr, &products);  // what a backward reads again means something
  const auto work = [&] {
    if (pass == Pass::forward)
      cuda::forward(op, values, scratch.get(), nullptr, &products);
    else
      cuda::backward(op, values, gradients, scratch.get(), nullptr, &products);
  };
  const double seconds = static_cast<double>(cold_median(work, flush)) * 1e-3;
  std::printf("%9.4f %8.1f %8.0f  %s\n", seconds * 1e3, flops(op, pass, wants).value / seconds / 1e12,
              static_cast<double>(bytes_moved(op, pass, wants).value) / seconds / 1e9, key(op, pass, wants).c_str());
  std::fflush(stdout);
}

}  // namespace

int main() {
  if (kernels::device_count() == 0) {
    std::puts("no CUDA device: nothing measured");
    return 0;
  }
  using namespace op;
  DeviceBuffer flush(192u << 20);
  cuda::Products products;
  std::printf("%9s %8s %8s  %s\n", "ms", "TFLOP/s", "GB/s", "call");
  for (const Op& op : std::vector<Op>{
           SparseAttention{
               .tokens = 4096, .sequence_length = 4096, .heads = 128, .d_qk = 576, .d_v = 512, .topk = 2048},
           SparseAttention{.tokens = 4096, .sequence_length = 4096, .heads = 64, .d_qk = 576, .d_v = 512, .topk = 2048},
           SparseAttention{.tokens = 4096,
           .sequence_length = 4096,
           .heads = 64,
           .kv_heads = 4,
           .d_qk = 128,
           .d_v = 128,
           .topk = 16,
           .block = 128,
           .latent = false},
           op::CompressedAttention{.tokens = 4096,
           .sequence_length = 4096,
           .heads = 64,
           .head_dim = 512,
           .window = 128,
           .ratio = 4,
           .compressed = 1024,
           .topk = 512},
           Indexer{.tokens = 4096, .sequence_length = 4096, .heads = 64, .dim = 128, .topk = 2048},
           Indexer{.tokens = 4096, .sequence_length = 65536, .heads = 64, .dim = 128, .topk = 2048, .kv_tokens = 65536},
           GatedDeltaNet{.tokens = 4096, .sequence_length = 4096, .k_heads = 16, .v_heads = 32, .d_k = 128, .d_v = 128},
           GatedDeltaNet{
               .tokens = 16384, .sequence_length = 16384, .k_heads = 16, .v_heads = 64, .d_k = 128, .d_v = 128},
           HyperPre{8192, 7168, 4}, HyperPost{8192, 7168, 4},
           Compress{.tokens = 8192, .sequence_length = 8192, .width = 512, .ratio = 4, .overlap = true},
           HeadLinear{.tokens = 4096, .heads = 128, .in = 512, .block = 256, .count = 128, .transposed = true},
           HeadLinear{.tokens = 4096, .heads = 128, .in = 512, .block = 256, .begin = 128, .count = 128}})
    for (const Pass pass : {Pass::forward, Pass::backward}) report(op, pass, flush, products);
}
