#pragma once
/// \file
/// Times one call of the CUDA backend on random operands, with a cold cache.

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include <cuda_bf16.h>

#include "kernels/cuda.hpp"

namespace moeplan::bench {

using kernels::DeviceBuffer;
using kernels::Event;

/// Fills with copies of 4 MiB of numbers in (-1, 1) that the type reads as ordinary; whole numbers get small ids.
inline void fill(const Operand& o, DeviceBuffer& memory) {
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

/// A call on random operands.
inline Measured measure(const Op& op, Pass pass, Wants asked, DeviceBuffer& flush, cuda::Products* products = nullptr) {
  const Operands list = operands(op);
  const Wants wants = possible(op, asked);
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
    if (pass == Pass::forward) cuda::forward(op, values, scratch.get(), nullptr, products);
    else cuda::backward(op, values, gradients, scratch.get(), nullptr, products);
  };
  return {cold_median(work, flush), bytes};
}

}  // namespace moeplan::bench
