/// \file
/// Mamba-2, lightning attention and Mamba-1 at the shapes of Nemotron-3, MiniMax-M1 and Jamba: cold-cache medians
/// beside the floor, the longer of the contract's operations at 790 TFLOP/s (Mamba-1: powers of two, 16 a cycle and
/// multiprocessor) and its bytes at 4.8 TB/s.

#include <algorithm>
#include <cstdio>

#include "bench/cuda_timing.hpp"

namespace {

using namespace moeplan;
using namespace moeplan::bench;

void report(const Op& op, Pass pass, DeviceBuffer& flush) {
  const Operands list = operands(op);
  const Wants wants = possible(op, {true, true});
  std::vector<DeviceBuffer> memory;
  std::vector<void*> values, gradients;
  const auto buffer = [&](const Operand& o) -> void* {
    memory.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(o.bytes().value, 16)));
    fill(o, memory.back());
    return memory.back().get();
  };
  for (const Operand& o : list) {
    values.push_back(buffer(o));
    const bool leaves =
        (o.role == Role::input && wants.input_grad) || (o.role == Role::weight && o.trained && wants.weight_grad);
    gradients.push_back(pass == Pass::backward && (o.role == Role::output || leaves) ? buffer(o) : nullptr);
  }
  const DeviceBuffer scratch(static_cast<std::size_t>(cuda::workspace(op, pass, wants).value));
  const auto work = [&] {
    if (pass == Pass::forward)
      cuda::forward(op, values, scratch.get(), nullptr);
    else
      cuda::backward(op, values, gradients, scratch.get(), nullptr);
  };
  const double seconds = static_cast<double>(cold_median(work, flush)) * 1e-3;
  double compute = flops(op, pass, wants).value / 790e12;
  if (const auto* mamba = std::get_if<op::Mamba1>(&op))
    compute = static_cast<double>(mamba->tokens * mamba->inner * mamba->state) * (pass == Pass::forward ? 1 : 2) /
              (16.0 * 132 * 1.98e9);
  const double floor = std::max(compute, bytes_moved(op, pass, wants).value / 4.8e12);
  std::printf("%9.4f %9.4f %6.1f%% %9.1f  %s\n", seconds * 1e3, floor * 1e3, 100 * floor / seconds,
              static_cast<double>(scratch.bytes()) / 1e6, key(op, pass, wants).c_str());
  std::fflush(stdout);
}

}  // namespace

int main() {
  if (kernels::device_count() == 0) {
    std::puts("no CUDA device: nothing measured");
    return 0;
  }
  DeviceBuffer flush(192u << 20);
  std::printf("%9s %9s %7s %9s  %s\n", "ms", "floor", "share", "scratch MB", "call");
  for (const Op& op : std::vector<Op>{
           op::Mamba2{.tokens = 8192, .sequence_length = 8192, .heads = 64, .head_dim = 64, .groups = 8, .state = 128},
           op::Mamba2{.tokens = 8192, .sequence_length = 8192, .heads = 128, .head_dim = 64, .groups = 8, .state = 128},
           op::Mamba2{
               .tokens = 65536, .sequence_length = 65536, .heads = 128, .head_dim = 64, .groups = 8, .state = 128},
           op::LightningAttention{.tokens = 8192, .sequence_length = 8192, .heads = 64, .head_dim = 128},
           op::Mamba1{.tokens = 8192, .sequence_length = 8192, .inner = 8192, .state = 16}})
    for (const Pass pass : {Pass::forward, Pass::backward}) report(op, pass, flush);
}
