/// `head_linear` on the GPU: reference.cpp has the mathematics. Heads' rows lie beside each other, so that each head is
/// a strided product of cuBLASLt; what has the same right side for all heads (A of the pair) is one product over tokens
/// x heads rows. As in `linear` the pair's share is written first and added inside the wide product. A quantised W is
/// read back to bf16 first (scratch of its size).
///   plain       y_h = x_h W_h^T;  pair = x A^T, y_h += s pair_h B_h^T;  back = s dy_h B_h, dx += back A, dA = back^T
///   x, dB_h = s dy_h^T pair_h transposed  y_h = x_h W_h;  pair_h = x_h B_h, y += s pair A;  back = s dy A^T, dx_h +=
///   back_h B_h^T, dA = s pair^T dy, dB_h = x_h^T back_h

#include "kernels/cuda.hpp"

namespace moeplan::cuda {
namespace {

using Op = op::HeadLinear;

std::int64_t weight_bytes(const Op& op) {
  return op.weight == DType::bf16 ? 0 : aligned_bytes(2 * op.heads * op.block * op.in);
}

const char* plain_weight(const Op& op, const Frame& f) {
  if (op.weight == DType::bf16) return static_cast<const char*>(f["w"].data);
  const op::Dequantise back{op.heads * op.block, op.in, op.weight};
  const Operands list = back.operands();
  void* const values[]{f["w"].data, f.scratch<void>()};
  forward(back, Frame(list, values, {}, nullptr, f.stream(), f.device()));
  return f.scratch<char>();
}

/// The products of one head after the other over tensors whose rows hold all heads.
struct Heads {
  const Op& op;
  const Frame& f;
  std::int64_t from = op.transposed ? op.count : op.in, to = op.transposed ? op.in : op.count;

  /// Columns of head h in a tensor of heads x `width` columns.
  [[nodiscard]] Factor columns(const void* data, std::int64_t h, std::int64_t width, bool transposed = false) const {
    return {
        static_cast<const char*>(data) + 2 * h * width, op.tokens, width, transposed, DType::bf16, op.heads * width};
  }
  /// Rows of head h in W or B.
  [[nodiscard]] Factor rows(const void* data, std::int64_t h, std::int64_t width, bool transposed) const {
    return {static_cast<const char*>(data) + 2 * (h * op.block + op.begin) * width, op.count, width, transposed};
  }
  [[nodiscard]] void* columns_out(const Tensor& t, std::int64_t h, std::int64_t width) const {
    return static_cast<char*>(t.data) + 2 * h * width;
  }
  [[nodiscard]] void* rows_out(const Tensor& t, std::int64_t h, std::int64_t width) const {
    return static_cast<char*>(t.data) + 2 * (h * op.block + op.begin) * width;
  }
  /// All heads of all tokens as rows of one matrix.
  [[nodiscard]] Factor all(const void* data, std::int64_t width, bool transposed = false) const {
    return {data, op.tokens * op.heads, width, transposed};
  }
  [[nodiscard]] Factor a(bool transposed) const { return {f["a"].data, op.lora_rank, op.in, transposed}; }
  void multiply(const Factor& a, const Factor& b, void* c, float alpha, float beta, std::int64_t stride = 0) const {
    f.products().multiply(a, b, c, DType::bf16, alpha, beta, f.stream(), stride);
  }
  template <class F>
  void each(F&& run) const {
    for (std::int64_t h = 0; h < op.heads; ++h) run(h);
  }
};

/// Rows of a block that this call does not use have no gradient.
void clear_unused(const Op& op, const Tensor& d, cudaStream_t stream) {
  if (d && op.count < op.block)
    kernels::check(cudaMemsetAsync(d.data, 0, static_cast<std::size_t>(2 * d.size()), stream),
                   "clear a gradient of head_linear");
}

}  // namespace

std::string refusal(const Op& op) {
  if (op.begin + op.count > op.block)
    return "rows " + std::to_string(op.begin) + " to " + std::to_string(op.begin + op.count) + " of blocks of " +
           std::to_string(op.block);
  if (op.weight == DType::bf16) return {};
  if (op.training == Training::full)
    return "a trained weight stored as " + std::string(name_of(op.weight)) + "; train bf16";
  return refusal(op::Dequantise{op.heads * op.block, op.in, op.weight});
}

std::int64_t scratch(const Op& op, Pass pass, Wants wants) {
  if (pass == Pass::forward) return weight_bytes(op);
  return (wants.input_grad ? weight_bytes(op) : 0) +
         (op.lora_rank > 0 ? aligned_bytes(2 * op.tokens * op.heads * op.lora_rank) : 0);
}

void forward(const Op& op, const Frame& f) {
  const Heads heads{op, f};
  const std::int64_t r = op.lora_rank;
  const float s = static_cast<float>(op.lora_scale);
  const void *x = f["x"].data, *w = plain_weight(op, f);
  const Tensor y = f["y"], pair = f["x_pair"];
  if (r > 0 && op.transposed) {
    heads.each([&](std::int64_t h) {
      heads.multiply(heads.columns(x, h, op.count), heads.rows(f["b_lora"].data, h, r, false),
                     heads.columns_out(pair, h, r), 1, 0, op.heads * r);
    });
    heads.multiply(heads.all(pair.data, r), heads.a(false), y.data, s, 0);
  } else if (r > 0) {
    heads.multiply(heads.all(x, op.in), heads.a(true), pair.data, 1, 0);
    heads.each([&](std::int64_t h) {
      heads.multiply(heads.columns(pair.data, h, r), heads.rows(f["b_lora"].data, h, r, true),
                     heads.columns_out(y, h, op.count), s, 0, op.heads * op.count);
    });
  }
  heads.each([&](std::int64_t h) {
    heads.multiply(heads.columns(x, h, heads.from), heads.rows(w, h, op.in, !op.transposed),
                   heads.columns_out(y, h, heads.to), 1, r > 0 ? 1 : 0, op.heads * heads.to);
  });
}

void backward(const Op& op, const Frame& f) {
  const Heads heads{op, f};
  const std::int64_t r = op.lora_rank;
  const float s = static_cast<float>(op.lora_scale);
  const Tensor dx = f.d("x"), dw = f.d("w"), da = f.d("a"), db = f.d("b_lora");
  const void *dy = f.d("y").data, *x = f["x"].data, *w = nullptr;
  char* at = f.scratch<char>();
  if (dx) w = plain_weight(op, f), at += weight_bytes(op);
  clear_unused(op, dw, f.stream()), clear_unused(op, db, f.stream());
  if (r > 0) {
    void* const back = at;  // [tokens, heads r], scaled
    if (op.transposed) {
      if (dx || db) heads.multiply(heads.all(dy, op.in), heads.a(true), back, s, 0);
      if (da) heads.multiply(heads.all(f["x_pair"].data, r, true), heads.all(dy, op.in), da.data, s, 0);
    } else {
      if (dx || da)
        heads.each([&](std::int64_t h) {
          heads.multiply(heads.columns(dy, h, op.count), heads.rows(f["b_lora"].data, h, r, false),
                         static_cast<char*>(back) + 2 * h * r, s, 0, op.heads * r);
        });
      if (dx) heads.multiply(heads.all(back, r), heads.a(false), dx.data, 1, 0);
      if (da) heads.multiply(heads.all(back, r, true), heads.all(x, op.in), da.data, 1, 0);
    }
    heads.each([&](std::int64_t h) {
      if (dx && op.transposed)
        heads.multiply(heads.columns(back, h, r), heads.rows(f["b_lora"].data, h, r, true),
                       heads.columns_out(dx, h, op.count), 1, 0, op.heads * op.count);
      if (db && op.transposed)
        heads.multiply(heads.columns(x, h, op.count, true), heads.columns(back, h, r), heads.rows_out(db, h, r), 1, 0);
      if (db && !op.transposed)
        heads.multiply(heads.columns(dy, h, op.count, true), heads.columns(f["x_pair"].data, h, r),
                       heads.rows_out(db, h, r), s, 0);
    });
  }
  heads.each([&](std::int64_t h) {
    if (dx)
      heads.multiply(heads.columns(dy, h, heads.to), heads.rows(w, h, op.in, op.transposed),
                     heads.columns_out(dx, h, heads.from), 1, r > 0 ? 1 : 0, op.heads * heads.from);
    if (dw && op.transposed)
      heads.multiply(heads.columns(x, h, op.count, true), heads.columns(dy, h, op.in), heads.rows_out(dw, h, op.in), 1,
                     0);
    if (dw && !op.transposed)
      heads.multiply(heads.columns(dy, h, op.count, true), heads.columns(x, h, op.in), heads.rows_out(dw, h, op.in), 1,
                     0);
  });
}

}  // namespace moeplan::cuda
