/// Linear on the GPU: reference.cpp has the mathematics. The products are cuBLASLt's; the pair costs two thin products more in each pass,
/// and its share of y and dx is written first and added inside the wide product, so that y and dx are written once more, not read and written.
///   forward   x_a = x A^T;  y = s x_a B^T;  y += x W^T (+ b)
///   backward  low = s dy B;  dx = low A;  dx += dy W;  dA = low^T x;  dB = s dy^T x_a;  dW = dy^T x;  db = column sums of dy
/// A quantised W is read back to bf16 first (scratch of its size).

#include "kernels/base/column_sum.cuh"
#include "kernels/cuda.hpp"
#include "kernels/linear/op.hpp"

namespace moeplan::cuda {
namespace {

bool quantised(DType t) { return t != DType::bf16; }

std::int64_t weight_bytes(const op::Linear& op) { return quantised(op.weight) ? aligned_bytes(2 * op.in * op.out) : 0; }

/// W in bf16: where it lies, or read back into the start of the scratch.
const void* plain_weight(const op::Linear& op, const Frame& f) {
  if (!quantised(op.weight)) return f["w"].data;
  const op::Dequantise back{op.out, op.in, op.weight};
  const Operands list = back.operands();
  void* const values[]{f["w"].data, f.scratch<void>()};
  forward(back, Frame(list, values, {}, nullptr, f.stream(), f.device()));
  return f.scratch<void>();
}

}  // namespace

std::string refusal(const op::Linear& op) {
  if (op.weight == DType::bf16) return {};
  if (op.training == Training::full) return "linear: a trained weight stored as " + std::string(name_of(op.weight)) + "; train bf16";
  if (const std::string why = refusal(op::Dequantise{op.out, op.in, op.weight}); !why.empty()) return "linear: " + why;
  return {};
}

std::int64_t scratch(const op::Linear& op, Pass pass, Wants wants) {
  if (pass == Pass::forward) return weight_bytes(op);
  const bool low = op.lora_rank > 0 && (wants.input_grad || wants.weight_grad);
  return (wants.input_grad ? weight_bytes(op) : 0) + (low ? aligned_bytes(2 * op.tokens * op.lora_rank) : 0) + (op.bias && op.training == Training::full ? column_sum_scratch(op.out) : 0);
}

void forward(const op::Linear& op, const Frame& f) {
  Products& products = f.products();
  const Factor x{f["x"].data, op.tokens, op.in}, w{plain_weight(op, f), op.out, op.in, true};
  void* const y = f["y"].data;
  if (op.lora_rank) {
    void* const x_a = f["x_a"].data;
    products.multiply(x, {f["a"].data, op.lora_rank, op.in, true}, x_a, DType::bf16, 1, 0, f.stream());
    products.multiply({x_a, op.tokens, op.lora_rank}, {f["b_lora"].data, op.out, op.lora_rank, true}, y, DType::bf16, static_cast<float>(op.lora_scale), 0, f.stream());
  }
  products.multiply(x, w, y, DType::bf16, 1, op.lora_rank ? 1 : 0, f.stream(), 0, op.bias ? f["b"].data : nullptr);
}

void backward(const op::Linear& op, const Frame& f) {
  Products& products = f.products();
  const Factor dy{f.d("y").data, op.tokens, op.out}, dy_columns{f.d("y").data, op.tokens, op.out, true}, x{f["x"].data, op.tokens, op.in};
  auto* at = f.scratch<char>();
  const void* w = nullptr;
  if (f.d("x")) w = plain_weight(op, f), at += weight_bytes(op);
  const float s = static_cast<float>(op.lora_scale);
  if (op.lora_rank) {
    void* const low = at;
    at += aligned_bytes(2 * op.tokens * op.lora_rank);
    if (f.d("x") || f.d("a")) products.multiply(dy, {f["b_lora"].data, op.out, op.lora_rank}, low, DType::bf16, s, 0, f.stream());
    if (f.d("x")) products.multiply({low, op.tokens, op.lora_rank}, {f["a"].data, op.lora_rank, op.in}, f.d("x").data, DType::bf16, 1, 0, f.stream());
    if (f.d("a")) products.multiply({low, op.tokens, op.lora_rank, true}, x, f.d("a").data, DType::bf16, 1, 0, f.stream());
    if (f.d("b_lora")) products.multiply(dy_columns, {f["x_a"].data, op.tokens, op.lora_rank}, f.d("b_lora").data, DType::bf16, s, 0, f.stream());
  }
  if (f.d("x")) products.multiply(dy, {w, op.out, op.in}, f.d("x").data, DType::bf16, 1, op.lora_rank ? 1 : 0, f.stream());
  if (f.d("w")) products.multiply(dy_columns, x, f.d("w").data, DType::bf16, 1, 0, f.stream());
  if (f.d("b")) column_sum(f.d("y").as<bf16>(), op.tokens, op.out, op.out, f.d("b").as<bf16>(), reinterpret_cast<float*>(at), f.stream());
}

}  // namespace moeplan::cuda
