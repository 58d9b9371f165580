/// \file
/// The memory-bound operators of the CUDA backend at real widths: cold-cache medians of forward and backward, and the bytes of the
/// contract (`bytes_moved`) over that time against 4.8 TB/s (H200 data sheet) and against a copy on the same device. Widths: tokens 8192,
/// hidden 7168, and Kimi K3's (96 KDA heads of 128, two shared experts of 3072, vocabulary 163840).

#include <cstdio>

#include "bench/cuda_timing.hpp"

namespace {

using namespace moeplan;
using namespace moeplan::bench;

constexpr double peak = 4.8e12;   // bytes/s

std::vector<Op> shapes() {
  using namespace op;
  constexpr std::int64_t t = 8192, h = 7168;
  constexpr auto full = Training::full;
  return {RmsNorm{t, h}, RmsNorm{t, h, true}, RmsNorm{t, h, true, true, full}, RmsNorm{t * 64, 128}, RmsNorm{t, 2304, true}, RmsNorm{t, 512},
          GatedRmsNorm{t * 96, 128}, GatedRmsNorm{t * 96, 128, 1, GateFunction::silu, false, full}, GatedRmsNorm{t, h, 1, GateFunction::silu, true},
          LayerNorm{t, h}, LayerNorm{t, h, true, full}, AttentionResidual{t, h, 4}, AttentionResidual{t, h, 8}, HyperExpand{t, h, 4},
          Glu{t, 6144}, Glu{t, 6144, Activation::situ}, Glu{t, 6144, Activation::gelu}, Glu{t, 2880, Activation::clamped_swiglu, true},
          Activate{t, h}, Activate{t, h, Function::gelu}, Activate{t, h, Function::relu2}, Activate{t, 12288, Function::sigmoid, DType::f32},
          Add{t, h}, Add{t, h, true, 0.22}, MulGate{t, 12288, 12288}, MulGate{t, 12288, 96}, MulGate{t, h, 1},
          op::Rope{.tokens = t, .heads = 64, .head_dim = 192, .rotary_dim = 64, .sequence_length = t, .trailing = true, .interleaved = true},
          op::Rope{.tokens = t, .heads = 64, .head_dim = 128, .rotary_dim = 128, .sequence_length = t},
          op::Rope{.tokens = t, .heads = 1, .head_dim = 64, .rotary_dim = 64, .sequence_length = t, .interleaved = true},
          Join{t, 96, 128, 64}, Embedding{t, 163840, h}, Embedding{t, 163840, h, full}, Cast{t, h}, Cast{t, h, DType::bf16, DType::f32},
          Quantise{t, h}, Quantise{t, h, DType::bf16, DType::mxfp4}, Quantise{t, h, DType::bf16, DType::int8}, Dequantise{t, h}, Dequantise{t, h, DType::mxfp4}, Dequantise{t, h, DType::int4},
          GradNorm{t * h}, GradNorm{t * h, DType::bf16}, AdamW{t * h}, AdamW{t * h, OptimizerKind::adamw8bit, DType::bf16},
          ShortConv{.tokens = t, .sequence_length = t, .channels = 12288}, ShortConv{.tokens = t, .sequence_length = 1024, .channels = 12288, .training = full}};
}

}  // namespace

/// Arguments: parts of keys; only calls that have one of them are timed.
int main(int count, char** words) {
  if (kernels::device_count() == 0) {
    std::puts("no CUDA device: nothing measured");
    return 0;
  }
  DeviceBuffer flush(192u << 20);
  constexpr std::size_t copied = std::size_t{8192} * 7168 * 2;
  DeviceBuffer from(copied), to(copied);
  const float copy = cold_median([&] { kernels::check(cudaMemcpyAsync(to.get(), from.get(), copied, cudaMemcpyDeviceToDevice, nullptr), "copy"); }, flush);
  const double copy_rate = 2.0 * static_cast<double>(copied) / (static_cast<double>(copy) * 1e-3);
  std::printf("copy of %.1f MB: %.4f ms, %.0f GB/s, %.1f %% of %.1f TB/s\n", static_cast<double>(copied) / 1e6, static_cast<double>(copy), copy_rate / 1e9, 100 * copy_rate / peak, peak / 1e12);
  std::printf("%9s %9s %8s %8s  %s\n", "ms", "GB/s", "% peak", "% copy", "call");
  for (const Op& op : shapes())
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const std::string name = key(op, pass, possible(op, {true, true}));
      if (count > 1 && std::none_of(words + 1, words + count, [&](const char* word) { return name.find(word) != std::string::npos; })) continue;
      const Measured m = measure(op, pass, {true, true}, flush);
      if (m.bytes == 0) continue;
      const double rate = m.bytes / (static_cast<double>(m.milliseconds) * 1e-3);
      std::printf("%9.4f %9.0f %8.1f %8.1f  %s\n", static_cast<double>(m.milliseconds), rate / 1e9, 100 * rate / peak, 100 * rate / copy_rate, name.c_str());
      std::fflush(stdout);
    }
}
