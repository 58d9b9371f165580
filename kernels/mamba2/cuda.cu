/// \file
/// `mamba2` as the catalogue calls it: C and B are the family's queries and keys (chunks.cuh), dt and the decay its
/// gate, D its skip.

#include "kernels/cuda_frame.hpp"
#include "kernels/mamba2/chunks.cuh"
#include "kernels/mamba2/op.hpp"

namespace moeplan::cuda {
namespace {

moeplan::ssd::Dims dims_of(const op::Mamba2& op) {
  return {.tokens = op.tokens, .heads = op.heads, .groups = op.groups, .state = op.state, .head_dim = op.head_dim};
}

ssd::Problem inputs(const op::Mamba2& op, const Frame& f) {
  ssd::Problem p;
  p.q = f["c"].as<bf16>(), p.k = f["b"].as<bf16>(), p.v = f["x"].as<bf16>(), p.raw = f["dt"].as<bf16>();
  p.a_log = f["a_log"].as<float>(), p.bias = f["dt_bias"].as<float>(), p.skip = f["d"].as<float>();
  p.starts = op.packed_sequences != 0 ? f["starts"].as<i64>() : nullptr;
  p.packed = static_cast<int>(op.packed_sequences), p.length = op.sequence_length;
  return p;
}

}  // namespace

void forward(const op::Mamba2& op, const Frame& f) {
  if (op.tokens == 0) return;
  ssd::Problem p = inputs(op, f);
  p.y = f["y"].as<bf16>();
  ssd::forward(ssd::laid_out(p, dims_of(op), false, f.scratch<char>()), f.stream());
}

void backward(const op::Mamba2& op, const Frame& f) {
  if (op.tokens == 0) {
    for (const char* name : {"a_log", "dt_bias", "d"})
      if (float* d = f.d(name).as<float>())
        kernels::check(cudaMemsetAsync(d, 0, static_cast<std::size_t>(4 * op.heads), f.stream()),
                       "mamba2 backward without tokens");
    return;
  }
  ssd::Problem p = inputs(op, f);
  p.dy = f.d("y").as<bf16>();
  p.dq = f.d("c").as<bf16>(), p.dk = f.d("b").as<bf16>(), p.dv = f.d("x").as<bf16>(), p.d_raw = f.d("dt").as<bf16>();
  p.d_a_log = f.d("a_log").as<float>(), p.d_bias = f.d("dt_bias").as<float>(), p.d_skip = f.d("d").as<float>();
  ssd::backward(ssd::laid_out(p, dims_of(op), true, f.scratch<char>()), f.stream());
}

std::string refusal(const op::Mamba2& op) { return ssd::refusal(dims_of(op)); }

std::int64_t scratch(const op::Mamba2& op, Pass pass, Wants wants) {
  if (!refusal(op).empty() || (pass == Pass::backward && wants == Wants{false, false})) return 0;
  return moeplan::ssd::layout(dims_of(op), pass == Pass::backward).total;
}

}  // namespace moeplan::cuda
