/// \file
/// The memory-bound operators of the CUDA backend at real widths: cold-cache medians of forward and backward, and the bytes of the
/// contract (`bytes_moved`) over that time against 4.8 TB/s (H200 data sheet) and against a copy on the same device. Widths: tokens 8192,
/// hidden 7168, and Kimi K3's (96 KDA heads of 128, two shared experts of 3072, vocabulary 163840).

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include <cuda_bf16.h>

#include "kernels/cuda.hpp"

namespace {

using namespace moeplan;
using kernels::DeviceBuffer;
using kernels::Event;

constexpr double peak = 4.8e12;   // bytes/s

/// Fills with copies of 4 MiB of numbers in (-1, 1) that the type reads as ordinary; whole numbers get small ids.
void fill(const Operand& o, DeviceBuffer& memory) {
  constexpr std::size_t block = 4u << 20;
  std::vector<std::uint8_t> noise(block);
  std::mt19937 random(3);
  for (std::size_t i = 0; i < block; i += 4) {
    const float one = static_cast<float>(random() % 20001) / 10000.0f - 1, two = static_cast<float>(random() % 20001) / 10000.0f - 1;
    std::uint32_t word = random() & 0x77777777u;   // codes: no NaN among E4M3
    if (o.dtype == DType::f32) std::memcpy(&word, &one, 4);
    if (o.dtype == DType::bf16) {
      const __nv_bfloat16 both[2]{__float2bfloat16(one), __float2bfloat16(two)};
      std::memcpy(&word, both, 4);
    }
    if (o.dtype == DType::f16) word = 0x38003400u;
    if (o.dtype == DType::i32) word = random() % 8192;
    if (o.name == "v" && o.dtype == DType::f32) word &= 0x7fffffffu;
    std::memcpy(noise.data() + i, &word, 4);
  }
  for (std::size_t at = 0; at < memory.bytes(); at += block)
    kernels::check(cudaMemcpy(memory.get<std::uint8_t>() + at, noise.data(), std::min(block, memory.bytes() - at), cudaMemcpyHostToDevice), "fill an operand");
}

/// Median milliseconds; 192 MB are written before each sample, which empties the cache and hides the launch.
template <class F>
float cold_median(const F& work, DeviceBuffer& flush) {
  work();
  std::vector<float> times;
  for (int i = 0; i < 11; ++i) {
    Event begin, end;
    flush.fill(i);
    begin.record(nullptr);
    work();
    end.record(nullptr);
    end.synchronize();
    times.push_back(end.milliseconds_since(begin));
  }
  std::nth_element(times.begin(), times.begin() + 5, times.end());
  return times[5];
}

struct Measured {
  float milliseconds = 0;
  double bytes = 0;
};

Measured measure(const Op& op, Pass pass, DeviceBuffer& flush) {
  const Operands list = operands(op);
  const Wants wants = possible(op, {true, true});
  const double bytes = static_cast<double>(bytes_moved(op, pass, wants).value);
  if (bytes == 0) return {};
  std::vector<DeviceBuffer> memory;
  std::vector<void*> values, gradients;
  const auto buffer = [&](const Operand& o) -> void* {
    memory.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(o.bytes().value, 16)));
    fill(o, memory.back());
    return memory.back().get();
  };
  for (const Operand& o : list) {
    values.push_back(pass == Pass::forward || needed(o.need, wants) ? buffer(o) : nullptr);
    const bool leaves = (o.role == Role::input && wants.input_grad) || (o.role == Role::weight && o.trained && wants.weight_grad);
    gradients.push_back(pass == Pass::backward && (o.role == Role::output || leaves) ? buffer(o) : nullptr);
    if (o.name == "step_size") {
      const float step[3]{1e-3f, 1, 3};
      kernels::check(cudaMemcpy(values.back(), step, sizeof step, cudaMemcpyHostToDevice), "step size");
    }
  }
  const DeviceBuffer scratch(static_cast<std::size_t>(cuda::workspace(op, pass, wants).value));
  const auto work = [&] {
    if (pass == Pass::forward) cuda::forward(op, values, scratch.get(), nullptr);
    else cuda::backward(op, values, gradients, scratch.get(), nullptr);
  };
  return {cold_median(work, flush), bytes};
}

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

int main() {
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
      const Measured m = measure(op, pass, flush);
      if (m.bytes == 0) continue;
      const double rate = m.bytes / (static_cast<double>(m.milliseconds) * 1e-3);
      std::printf("%9.4f %9.0f %8.1f %8.1f  %s\n", static_cast<double>(m.milliseconds), rate / 1e9, 100 * rate / peak, 100 * rate / copy_rate, key(op, pass, possible(op, {true, true})).c_str());
      std::fflush(stdout);
    }
}
