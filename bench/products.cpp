/// \file
/// The CUDA backend's products at real widths, cold-cache medians. Linear with a LoRA pair of rank 64: what forward, dx, dA and dB cost over
/// the frozen forward and dx, beside the arithmetic share 1.5 r (K + N) / (K N). Loss over a frozen head: against the two products it needs
/// (logits and dx, 4 t h v operations) run alone on the same device, and its scratch.

#include <cstdio>

#include "bench/cuda_timing.hpp"

namespace {

using namespace moeplan;
using namespace moeplan::bench;

struct Layer {
  const char* name;
  std::int64_t in, out;
};

void linear(const Layer& l, std::int64_t tokens, DeviceBuffer& flush, cuda::Products& products) {
  const auto time = [&](std::int64_t rank, Pass pass, Wants wants) {
    return static_cast<double>(measure(op::Linear{.tokens = tokens, .in = l.in, .out = l.out, .training = rank ? Training::lora : Training::frozen, .lora_rank = rank}, pass, wants, flush, &products).milliseconds);
  };
  constexpr std::int64_t r = 64;
  const double forward = time(0, Pass::forward, {}), dx = time(0, Pass::backward, {true, false}), with = time(r, Pass::forward, {}), all = time(r, Pass::backward, {true, true});
  const double k = static_cast<double>(l.in), n = static_cast<double>(l.out), flops = 2 * static_cast<double>(tokens) * k * n;
  std::printf("%-26s t %6ld  frozen %.4f + %.4f ms (%.0f, %.0f TFLOP/s)  LoRA r%ld %.4f + %.4f ms: %+.1f %%, arithmetic %.1f %%\n", l.name, static_cast<long>(tokens), forward, dx, flops / forward / 1e9,
              flops / dx / 1e9, static_cast<long>(r), with, all, 100 * ((with + all) / (forward + dx) - 1), 100 * 1.5 * r * (k + n) / (k * n));
  std::fflush(stdout);
}

void loss(std::int64_t tokens, std::int64_t hidden, std::int64_t token_chunk, std::int64_t vocabulary_chunk, DeviceBuffer& flush, cuda::Products& products) {
  constexpr std::int64_t v = 163840;
  const op::CrossEntropy call{.tokens = tokens, .hidden = hidden, .vocabulary = v, .token_chunk = token_chunk, .vocabulary_chunk = vocabulary_chunk, .fused_gradient = true};
  const double forward = static_cast<double>(measure(call, Pass::forward, {}, flush, &products).milliseconds), backward = static_cast<double>(measure(call, Pass::backward, {true, false}, flush, &products).milliseconds);
  const op::Linear head{.tokens = tokens, .in = hidden, .out = v};
  const double floor = static_cast<double>(measure(head, Pass::forward, {}, flush, &products).milliseconds + measure(head, Pass::backward, {true, false}, flush, &products).milliseconds);
  std::printf("cross_entropy t %6ld h %5ld v %ld chunk %5ld x %6ld  %.3f + %.3f ms, two products alone %.3f ms: %.1f %%, scratch %.0f MB\n", static_cast<long>(tokens), static_cast<long>(hidden), static_cast<long>(v),
              static_cast<long>(token_chunk), static_cast<long>(vocabulary_chunk), forward, backward, floor, 100 * floor / (forward + backward), static_cast<double>(cuda::workspace(call, Pass::forward).value) / 1e6);
  std::fflush(stdout);
}

}  // namespace

int main() {
  if (kernels::device_count() == 0) {
    std::puts("no CUDA device: nothing measured");
    return 0;
  }
  DeviceBuffer flush(192u << 20);
  cuda::Products products;
  for (const Layer& l : {Layer{"K3 q_proj", 7168, 12288}, Layer{"K3 o_proj", 12288, 7168}, Layer{"K3 kv_a", 7168, 576}, Layer{"K3 shared up", 7168, 6144}, Layer{"Kimi-Linear q_proj", 2304, 4096}, Layer{"Kimi-Linear o_proj", 4096, 2304},
                         Layer{"Kimi-Linear dense up", 2304, 18432}, Layer{"Qwen3-235B q_proj", 4096, 8192}})
    for (const std::int64_t tokens : {4096, 8192}) linear(l, tokens, flush, products);
  for (const std::int64_t hidden : {2304, 7168})
    for (const std::int64_t tokens : {4096, 8192, 16384})
      for (const auto& [t, v] : {std::pair<std::int64_t, std::int64_t>{2048, 8192}, {2048, 32768}, {4096, 16384}}) loss(tokens, hidden, t, v, flush, products);
}
