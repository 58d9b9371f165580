/// \file
/// Attention of the CUDA backend at real widths: cold-cache medians of forward and backward, and the arithmetic of the
/// contract (visible pairs only; backward counts five products, whatever the kernels repeat) over that time against 989
/// TFLOP/s (H200 data sheet, dense bf16). `bench/anchors/attention_torch.py` times cuDNN through torch at the same
/// shapes by the same protocol.

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

constexpr double peak = 989e12;  // flop/s

/// Normal bf16 or f32 numbers from a table of 4 MiB, uploaded once and repeated.
void fill(const Operand& o, DeviceBuffer& memory, unsigned seed) {
  constexpr std::size_t block = 4u << 20;
  std::vector<std::uint8_t> noise(std::min(block, memory.bytes()));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i + 4 <= noise.size(); i += 4) {
    const float one = normal(random), two = normal(random);
    const __nv_bfloat16 both[2]{__float2bfloat16(one), __float2bfloat16(two)};
    if (o.dtype == DType::f32)
      std::memcpy(noise.data() + i, &one, 4);
    else
      std::memcpy(noise.data() + i, both, 4);
  }
  for (std::size_t at = 0; at < memory.bytes(); at += noise.size())
    kernels::check(cudaMemcpy(memory.get<std::uint8_t>() + at, noise.data(),
                              std::min(noise.size(), memory.bytes() - at), cudaMemcpyHostToDevice),
                   "fill an operand");
}

/// Median milliseconds of 11; 192 MB are written before each sample, which empties the cache and hides the launch.
template <class F>
double cold_median(const F& work, DeviceBuffer& flush) {
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
  return static_cast<double>(times[5]);
}

void measure(const op::Attention& op, DeviceBuffer& flush) {
  const Operands list = operands(op);
  const Wants wants = possible(op, {true, true});
  std::vector<DeviceBuffer> memory;
  std::vector<void*> values, gradients;
  const auto buffer = [&](const Operand& o) -> void* {
    memory.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(o.bytes().value, 16)));
    fill(o, memory.back(), static_cast<unsigned>(memory.size()));
    return memory.back().get();
  };
  for (const Operand& o : list) {
    values.push_back(buffer(o));
    const bool leaves = o.role == Role::input || (o.role == Role::weight && o.trained);
    gradients.push_back(o.role == Role::output || leaves ? buffer(o) : nullptr);
    if (o.name != "starts") continue;
    std::vector<std::int32_t> starts;
    for (std::int64_t s = 0; s <= op.packed_sequences; ++s)
      starts.push_back(static_cast<std::int32_t>(op.tokens * s / op.packed_sequences));
    kernels::check(cudaMemcpy(values.back(), starts.data(), 4 * starts.size(), cudaMemcpyHostToDevice), "boundaries");
  }
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const DeviceBuffer scratch(static_cast<std::size_t>(cuda::workspace(op, pass, wants).value));
    const auto work = [&] {
      if (pass == Pass::forward)
        cuda::forward(op, values, scratch.get(), nullptr);
      else
        cuda::backward(op, values, gradients, scratch.get(), nullptr);
    };
    const double ms = cold_median(work, flush), rate = op.flops(pass, wants).value / (ms * 1e-3);
    std::printf("%10.4f %9.1f %7.1f  %s\n", ms, rate / 1e12, 100 * rate / peak, key(Op(op), pass, wants).c_str());
    std::fflush(stdout);
  }
}

std::vector<op::Attention> shapes() {
  using op::Attention;
  std::vector<Attention> out;
  for (const std::int64_t t : {4096, 8192, 16384, 32768}) {
    out.push_back({.tokens = t, .sequence_length = t, .heads = 32, .kv_heads = 32, .d_qk = 128, .d_v = 128});
    out.push_back({.tokens = t, .sequence_length = t, .heads = 32, .kv_heads = 32, .d_qk = 192, .d_v = 128});
  }
  const std::int64_t t = 8192;
  for (const Attention& each :
       {Attention{.tokens = t,
       .sequence_length = t,
       .heads = 128,
       .kv_heads = 128,
       .d_qk = 192,
       .d_v = 128,
       .shared_key = 64},  // DeepSeek-V3
        Attention{
            .tokens = t, .sequence_length = t, .heads = 64, .kv_heads = 4, .d_qk = 128, .d_v = 128},  // Qwen3-235B
        Attention{.tokens = t,
        .sequence_length = 2048,
        .heads = 32,
        .kv_heads = 4,
        .d_qk = 128,
        .d_v = 128,
        .packed_sequences = 4},
        Attention{.tokens = t,
        .sequence_length = t,
        .heads = 64,
        .kv_heads = 8,
        .d_qk = 64,
        .d_v = 64,
        .sinks = true},  // gpt-oss, its two kinds of layer
        Attention{.tokens = t,
        .sequence_length = t,
        .heads = 64,
        .kv_heads = 8,
        .d_qk = 64,
        .d_v = 64,
        .window = 128,
        .sinks = true},
        Attention{
            .tokens = t, .sequence_length = t, .heads = 16, .kv_heads = 2, .d_qk = 256, .d_v = 256},  // Qwen3-Next
        Attention{
            .tokens = t, .sequence_length = t, .heads = 32, .kv_heads = 32, .d_qk = 128, .d_v = 128, .causal = false},
        Attention{.tokens = 5000, .sequence_length = 5000, .heads = 24, .kv_heads = 8, .d_qk = 128, .d_v = 128}})
    out.push_back(each);
  return out;
}

}  // namespace

int main() {
  if (kernels::device_count() == 0) {
    std::puts("no CUDA device: nothing measured");
    return 0;
  }
  DeviceBuffer flush(192u << 20);
  std::printf("%10s %9s %7s  %s\n", "ms", "TFLOP/s", "% peak", "call");
  for (const op::Attention& op : shapes()) measure(op, flush);
}
