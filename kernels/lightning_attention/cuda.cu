/// \file
/// `lightning_attention` on the GPU as the member of Mamba-2's family it is (kernels/mamba2/chunks.cuh): a group a
/// head, dt = 1, a constant decay a head, nothing besides the state.

#include <cmath>

#include "kernels/cuda_frame.hpp"
#include "kernels/lightning_attention/op.hpp"
#include "kernels/mamba2/chunks.cuh"

namespace moeplan::cuda {
namespace {

moeplan::ssd::Dims dims_of(const op::LightningAttention& op) {
  return {.tokens = op.tokens,
          .heads = op.heads,
          .groups = op.heads,
          .state = op.head_dim,
          .head_dim = op.head_dim,
          .gated = false};
}

ssd::Problem inputs(const op::LightningAttention& op, const Frame& f) {
  ssd::Problem p;
  p.q = f["q"].as<bf16>(), p.k = f["k"].as<bf16>(), p.v = f["v"].as<bf16>();
  p.starts = op.packed_sequences != 0 ? f["starts"].as<i64>() : nullptr;
  p.packed = static_cast<int>(op.packed_sequences), p.length = op.sequence_length;
  const double step = 8 / static_cast<double>(op.total_heads != 0 ? op.total_heads : op.heads);
  p.slope = static_cast<float>(op.decay * std::exp2(-step * (op.first_head + 1)) / std::log(2.0)),
  p.slope_step = static_cast<float>(step);
  return p;
}

}  // namespace

void forward(const op::LightningAttention& op, const Frame& f) {
  if (op.tokens == 0) return;
  ssd::Problem p = inputs(op, f);
  p.y = f["y"].as<bf16>();
  ssd::forward(ssd::laid_out(p, dims_of(op), false, f.scratch<char>()), f.stream());
}

void backward(const op::LightningAttention& op, const Frame& f) {
  if (op.tokens == 0) return;
  ssd::Problem p = inputs(op, f);
  p.dy = f.d("y").as<bf16>();
  p.dq = f.d("q").as<bf16>(), p.dk = f.d("k").as<bf16>(), p.dv = f.d("v").as<bf16>();
  ssd::backward(ssd::laid_out(p, dims_of(op), true, f.scratch<char>()), f.stream());
}

std::string refusal(const op::LightningAttention& op) { return ssd::refusal(dims_of(op)); }

std::int64_t scratch(const op::LightningAttention& op, Pass pass, Wants wants) {
  if (!refusal(op).empty() || (pass == Pass::backward && !wants.input_grad)) return 0;
  return moeplan::ssd::layout(dims_of(op), pass == Pass::backward).total;
}

}  // namespace moeplan::cuda
