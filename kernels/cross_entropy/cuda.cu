/// Head and loss on the GPU: reference.cpp has the mathematics. Products by cuBLASLt on chunks [token_chunk, vocabulary_chunk] of logits in
/// fp32, which never leave their chunk's memory; loss_rows.cuh turns a chunk into bf16 weights or gradients for the next product.
/// The fused form of a frozen head makes dx in the same sweep: sums += e^(z - most) W, shrunk where a later chunk raises `most` (two products
/// in all). With softcap or label smoothing the softmax does not factor out, and a second sweep makes the logits again (three products).
/// Sums over chunks are fp32: over the vocabulary for dx, over the tokens for the gradients of W, b, A and B. A trained W takes the vocabulary
/// chunk by chunk outside and the tokens inside, so that one chunk of dW and dx of all tokens are held; otherwise the other way round.

#include "kernels/cross_entropy/loss_rows.cuh"
#include "kernels/base/column_sum.cuh"
#include "kernels/cross_entropy/op.hpp"
#include "kernels/cuda.hpp"

namespace moeplan::cuda {
namespace {

using Op = op::CrossEntropy;
constexpr DType f32 = DType::f32, b16 = DType::bf16;

/// Where things lie in the scratch. A first pass without memory counts the bytes.
struct Scratch {
  char* base;
  std::int64_t bytes = 0;
  template <class T>
  T* take(std::int64_t count, bool wanted = true) {
    char* const at = base + bytes;
    if (wanted) bytes += aligned_bytes(count * static_cast<std::int64_t>(sizeof(T)));
    return wanted && base != nullptr ? reinterpret_cast<T*>(at) : nullptr;
  }
};

struct Sweep {
  std::int64_t tokens, vocabulary;   ///< of a chunk
  bool dx = false, pair = false, dw = false;
  float *logits, *share, *lse, *sums, *back, *dw_sums, *da_sums, *db_lora_sums, *bias_sums, *bias_parts;
  LossState state;
  bf16 *low, *back16;
  std::int64_t bytes;
};

Sweep laid_out(const Op& op, Pass pass, Wants wants, char* base) {
  Scratch s{base};
  Sweep w{};
  w.tokens = std::min(op.tokens, op.token_chunk), w.vocabulary = std::min(op.vocabulary, op.vocabulary_chunk);
  const bool backward = pass == Pass::backward;
  if (backward && op.fused()) return w;
  w.dx = backward ? wants.input_grad : op.fused();
  w.pair = op.lora_rank > 0;
  w.dw = backward && op.training == Training::full && wants.weight_grad;
  const bool dpair = backward && w.pair && wants.weight_grad;
  const std::int64_t held = w.dw ? op.tokens : w.tokens;
  w.logits = s.take<float>(w.tokens * w.vocabulary);
  w.share = s.take<float>(1);
  float* const state = s.take<float>(5 * w.tokens, !backward);
  if (state != nullptr) w.state = {state, state + w.tokens, state + 2 * w.tokens, state + 3 * w.tokens, state + 4 * w.tokens};
  w.lse = s.take<float>(w.tokens, !backward && op.fused());
  w.sums = s.take<float>(held * op.hidden, w.dx);
  w.low = s.take<bf16>(held * op.lora_rank, w.pair);
  w.back = s.take<float>(held * op.lora_rank, w.pair && backward);
  w.back16 = s.take<bf16>(held * op.lora_rank, w.pair && backward);
  w.dw_sums = s.take<float>(w.vocabulary * op.hidden, w.dw);
  w.da_sums = s.take<float>(op.lora_rank * op.hidden, dpair);
  w.db_lora_sums = s.take<float>(op.vocabulary * op.lora_rank, dpair);
  w.bias_sums = s.take<float>(op.vocabulary, w.dw && op.bias);
  w.bias_parts = s.take<float>(column_slices * w.vocabulary, w.dw && op.bias);
  w.bytes = s.bytes;
  return w;
}

/// One chunk: tokens from t0 (n of them), vocabulary from v0 (`width` of it).
struct Chunk {
  std::int64_t t0, n, v0, width;
};

class Head {
 public:
  Head(const Op& op, const Frame& f, const Sweep& s) : op_(op), f_(f), s_(s) {
    const int tokens = static_cast<int>(op.tokens);
    labelled_share<<<1, loss_threads, 0, f.stream()>>>(tokens, labels(0), s.share);
    launched("labels");
  }
  [[nodiscard]] const std::int32_t* labels(std::int64_t t) const { return f_["labels"].as<std::int32_t>() + t; }
  [[nodiscard]] Factor x(const Chunk& c, bool transposed = false) const { return {f_["x"].as<bf16>() + c.t0 * op_.hidden, c.n, op_.hidden, transposed}; }
  [[nodiscard]] Factor w(const Chunk& c, bool transposed = false) const { return {f_["w"].as<bf16>() + c.v0 * op_.hidden, c.width, op_.hidden, transposed}; }
  [[nodiscard]] Factor b_lora(const Chunk& c, bool transposed = false) const { return {f_["b_lora"].as<bf16>() + c.v0 * op_.lora_rank, c.width, op_.lora_rank, transposed}; }
  /// Where a token's sums lie: all are held where W is trained, one chunk's otherwise.
  [[nodiscard]] std::int64_t held(const Chunk& c) const { return s_.dw ? c.t0 : 0; }
  [[nodiscard]] Factor low(const Chunk& c) const { return {s_.low + held(c) * op_.lora_rank, c.n, op_.lora_rank}; }
  /// The chunk after it was rewritten as bf16: every row in the first half of its own memory.
  [[nodiscard]] Factor rewritten(const Chunk& c, bool transposed = false) const { return {s_.logits, c.n, c.width, transposed, b16, 2 * c.width}; }
  void multiply(const Factor& a, const Factor& b, void* c, DType type, float alpha, float beta) const { f_.products().multiply(a, b, c, type, alpha, beta, f_.stream()); }

  void make_low(const Chunk& c) const {
    if (op_.lora_rank) multiply(x(c), {f_["a"].data, op_.lora_rank, op_.hidden, true}, s_.low + held(c) * op_.lora_rank, b16, 1, 0);
  }
  [[nodiscard]] LossChunk make_logits(const Chunk& c) const {
    if (op_.lora_rank) multiply(low(c), b_lora(c, true), s_.logits, f32, static_cast<float>(op_.lora_scale), 0);
    multiply(x(c), w(c, true), s_.logits, f32, 1, op_.lora_rank ? 1 : 0);
    return {s_.logits, op_.bias ? f_["b"].as<bf16>() + c.v0 : nullptr, labels(c.t0), s_.share, static_cast<int>(c.width), c.v0, op_.vocabulary,
            static_cast<float>(op_.logit_scale), static_cast<float>(op_.softcap), static_cast<float>(op_.z_loss), static_cast<float>(op_.label_smoothing)};
  }
  void launched(const char* what) const { kernels::check_launch(std::string("cross_entropy ") + what, "tokens=" + std::to_string(op_.tokens) + " hidden=" + std::to_string(op_.hidden) + " vocabulary=" + std::to_string(op_.vocabulary)); }

  template <class F>
  void over_vocabulary(Chunk c, const F& f) const {
    for (c.v0 = 0; c.v0 < op_.vocabulary; c.v0 += s_.vocabulary) {
      c.width = std::min(s_.vocabulary, op_.vocabulary - c.v0);
      f(c);
    }
  }
  template <class F>
  void over_tokens(const F& f) const {
    for (std::int64_t t = 0; t < op_.tokens; t += s_.tokens) f(Chunk{t, std::min(s_.tokens, op_.tokens - t), 0, 0});
  }

 private:
  const Op& op_;
  const Frame& f_;
  const Sweep& s_;
};

unsigned rows_of(std::int64_t n) { return static_cast<unsigned>(n); }
unsigned blocks_for(std::int64_t n) { return static_cast<unsigned>(std::clamp<std::int64_t>((n + loss_threads - 1) / loss_threads, 1, 4096)); }

}  // namespace

std::string refusal(const Op& op) {
  if (op.weight != DType::bf16) return "cross_entropy: a head stored as " + std::string(name_of(op.weight)) + "; keep it in bf16";
  if (op.tokens > (std::int64_t{1} << 31) - 1 || op.vocabulary_chunk > (std::int64_t{1} << 30)) return "cross_entropy: " + std::to_string(op.tokens) + " tokens; up to 2147483647";
  return {};
}

std::int64_t scratch(const Op& op, Pass pass, Wants wants) { return op.tokens == 0 ? 0 : laid_out(op, pass, wants, nullptr).bytes; }

void forward(const Op& op, const Frame& f) {
  auto* const loss = f["loss"].as<float>();
  kernels::check(cudaMemsetAsync(loss, 0, sizeof(float), f.stream()), "cross_entropy: clear the loss");
  if (op.tokens == 0) return;
  const Sweep s = laid_out(op, Pass::forward, {}, f.scratch<char>());
  const Head head(op, f, s);
  const bool factors = op.softcap == 0 && op.label_smoothing == 0, weights = op.fused() && factors;
  head.over_tokens([&](const Chunk& tokens) {
    head.make_low(tokens);
    head.over_vocabulary(tokens, [&](const Chunk& c) {
      join_logits<<<rows_of(c.n), loss_threads, 0, f.stream()>>>(head.make_logits(c), s.state, weights);
      if (!weights) return;
      if (c.v0 > 0) shrink_rows<<<rows_of(c.n), loss_threads, 0, f.stream()>>>(static_cast<int>(op.hidden), s.state.factor, s.sums);
      head.multiply(head.rewritten(c), head.w(c), s.sums, f32, 1, c.v0 > 0 ? 1 : 0);
    });
    float* const lse = op.fused() ? s.lse : f["lse"].as<float>() + tokens.t0;
    close_tokens<<<1, loss_threads, 0, f.stream()>>>(static_cast<int>(tokens.n), head.labels(tokens.t0), s.state, s.share, static_cast<float>(op.vocabulary),
                                                     static_cast<float>(op.z_loss), static_cast<float>(op.label_smoothing), lse, loss, tokens.t0 == 0);
    if (!op.fused()) return;
    bf16* const dx = f["dx"].as<bf16>() + tokens.t0 * op.hidden;
    if (weights) {
      close_gradient<<<rows_of(tokens.n), loss_threads, 0, f.stream()>>>(static_cast<int>(op.hidden), op.vocabulary, head.labels(tokens.t0), s.state, lse, s.share, static_cast<float>(op.logit_scale),
                                                                         static_cast<float>(op.z_loss), s.sums, f["w"].as<bf16>(), dx);
    } else {
      head.over_vocabulary(tokens, [&](const Chunk& c) {
        logits_to_gradient<<<rows_of(c.n), loss_threads, 0, f.stream()>>>(head.make_logits(c), lse, nullptr);
        head.multiply(head.rewritten(c), head.w(c), s.sums, f32, 1, c.v0 > 0 ? 1 : 0);
      });
      scaled_cast<<<blocks_for(tokens.n * op.hidden), loss_threads, 0, f.stream()>>>(tokens.n * op.hidden, s.sums, 1.0f, nullptr, dx);
    }
  });
  head.launched("forward");
}

void backward(const Op& op, const Frame& f) {
  const float* const dloss = f.d("loss").as<float>();
  if (op.fused()) {
    const std::int64_t n = op.tokens * op.hidden;
    if (f.d("x") && n > 0) scaled_cast<<<blocks_for(n), loss_threads, 0, f.stream()>>>(n, f["dx"].as<bf16>(), 1.0f, dloss, f.d("x").as<bf16>());
    kernels::check_launch("cross_entropy backward", "tokens=" + std::to_string(op.tokens));
    return;
  }
  if (op.tokens == 0) {
    for (const char* name : {"w", "a", "b_lora", "b"})
      if (const Tensor d = f.d(name)) kernels::check(cudaMemsetAsync(d.data, 0, static_cast<std::size_t>(2 * d.size()), f.stream()), "cross_entropy: clear a gradient");
    return;
  }
  const Sweep s = laid_out(op, Pass::backward, {static_cast<bool>(f.d("x")), f.d("w") || f.d("b") || f.d("a") || f.d("b_lora")}, f.scratch<char>());
  const Head head(op, f, s);
  const float lora = static_cast<float>(op.lora_scale);
  const auto cast = [&](const float* from, float scale, std::int64_t n, bf16* to) { scaled_cast<<<blocks_for(n), loss_threads, 0, f.stream()>>>(n, from, scale, nullptr, to); };
  const auto chunk = [&](const Chunk& c) {
    const float more_tokens = c.t0 > 0 ? 1.0f : 0.0f, more_entries = c.v0 > 0 ? 1.0f : 0.0f;
    logits_to_gradient<<<rows_of(c.n), loss_threads, 0, f.stream()>>>(head.make_logits(c), f["lse"].as<float>() + c.t0, dloss);
    if (s.dx) head.multiply(head.rewritten(c), head.w(c), s.sums + head.held(c) * op.hidden, f32, 1, more_entries);
    if (s.pair) head.multiply(head.rewritten(c), head.b_lora(c), s.back + head.held(c) * op.lora_rank, f32, 1, more_entries);
    if (s.dw) head.multiply(head.rewritten(c, true), head.x(c), s.dw_sums, f32, 1, more_tokens);
    if (s.db_lora_sums != nullptr) head.multiply(head.rewritten(c, true), head.low(c), s.db_lora_sums + c.v0 * op.lora_rank, f32, lora, more_tokens);
    if (s.bias_sums != nullptr) column_sum(reinterpret_cast<const bf16*>(s.logits), c.n, c.width, 2 * c.width, s.bias_sums + c.v0, s.bias_parts, f.stream(), more_tokens);
  };
  const auto close = [&](const Chunk& tokens) {
    float* const sums = s.sums + head.held(tokens) * op.hidden;
    if (s.pair) {
      bf16* const back = s.back16 + head.held(tokens) * op.lora_rank;
      cast(s.back + head.held(tokens) * op.lora_rank, lora, tokens.n * op.lora_rank, back);
      if (s.dx) head.multiply({back, tokens.n, op.lora_rank}, {f["a"].data, op.lora_rank, op.hidden}, sums, f32, 1, 1);
      if (s.da_sums != nullptr) head.multiply({back, tokens.n, op.lora_rank, true}, head.x(tokens), s.da_sums, f32, 1, tokens.t0 > 0 ? 1.0f : 0.0f);
    }
    if (s.dx) cast(sums, 1, tokens.n * op.hidden, f.d("x").as<bf16>() + tokens.t0 * op.hidden);
  };
  if (s.dw) {
    head.over_tokens([&](const Chunk& tokens) { head.make_low(tokens); });
    head.over_vocabulary({0, op.tokens, 0, 0}, [&](const Chunk& entries) {
      head.over_tokens([&](const Chunk& tokens) { chunk({tokens.t0, tokens.n, entries.v0, entries.width}); });
      if (const Tensor dw = f.d("w")) cast(s.dw_sums, 1, entries.width * op.hidden, dw.as<bf16>() + entries.v0 * op.hidden);
    });
    head.over_tokens(close);
  } else {
    head.over_tokens([&](const Chunk& tokens) {
      head.make_low(tokens);
      head.over_vocabulary(tokens, chunk);
      close(tokens);
    });
  }
  if (const Tensor db = f.d("b")) cast(s.bias_sums, 1, op.vocabulary, db.as<bf16>());
  if (const Tensor da = f.d("a")) cast(s.da_sums, 1, da.size(), da.as<bf16>());
  if (const Tensor db = f.d("b_lora")) cast(s.db_lora_sums, 1, db.size(), db.as<bf16>());
  head.launched("backward");
}

}  // namespace moeplan::cuda
