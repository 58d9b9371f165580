#pragma once
/// Head and loss in one: the mean over labelled tokens of lse(x W^T) - (x W^T)_label (+ z_loss lse^2, label smoothing, softcap),
/// worked off in chunks of tokens x vocabulary, so that never more than one chunk of logits exists. Labels of -100 are ignored; if all
/// are, loss and gradients are zero. W may be frozen, trained, or carry a LoRA pair.
/// The backward computes each chunk of logits again from x and the kept log-sum-exp. With a wholly frozen head `fused_gradient` makes
/// dx in the forward sweep instead (online rescaling as in attention: two products with W in all instead of three) and keeps that.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct CrossEntropy {
  static constexpr std::string_view kind = "cross_entropy";

  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;              ///< rows of W on this rank
  std::int64_t token_chunk = 2048;
  std::int64_t vocabulary_chunk = 8192;
  bool bias = false;                        ///< of the head (Phi-3.5-MoE)
  DType weight = DType::bf16;
  Training training = Training::frozen;     ///< of W and b
  std::int64_t lora_rank = 0;               ///< r; 0 without an adapter
  bool fused_gradient = false;              ///< frozen head only: dx is made by the forward
  double lora_scale = 1;                    ///< alpha / r
  double softcap = 0, z_loss = 0, label_smoothing = 0;
  double logit_scale = 1;                   ///< multiplies the logits (Granite)

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("tokens", &CrossEntropy::tokens).at_least(0), field("hidden", &CrossEntropy::hidden).above(0),
        field("vocabulary", &CrossEntropy::vocabulary, "rows of W on this rank").above(0), field("token_chunk", &CrossEntropy::token_chunk, "tokens worked on together").above(0),
        field("vocabulary_chunk", &CrossEntropy::vocabulary_chunk, "logits of a token worked on together").above(0), field("bias", &CrossEntropy::bias, "of the head"),
        field("weight", &CrossEntropy::weight, "stored type of W"), field("training", &CrossEntropy::training), field("lora_rank", &CrossEntropy::lora_rank, "r").at_least(0),
        field("fused_gradient", &CrossEntropy::fused_gradient, "frozen head: dx is made by the forward"), field("lora_scale", &CrossEntropy::lora_scale, "alpha / r"),
        field("softcap", &CrossEntropy::softcap).at_least(0), field("z_loss", &CrossEntropy::z_loss).at_least(0),
        field("label_smoothing", &CrossEntropy::label_smoothing).between(0, 1), field("logit_scale", &CrossEntropy::logit_scale).above(0));
  }

  [[nodiscard]] bool fused() const { return fused_gradient && training != Training::full && lora_rank == 0; }

  [[nodiscard]] Operands operands() const {
    const bool lora = lora_rank > 0, full = training == Training::full;
    const Need need = fused() ? not_needed : for_any_grad;
    Operands o;
    o.push_back({"x", Role::input, {tokens, hidden}, DType::bf16, need});
    o.push_back({"labels", Role::index, {tokens}, DType::i32, need});
    o.push_back({"w", Role::weight, {vocabulary, hidden}, weight, need, full});
    if (bias) o.push_back({"b", Role::weight, {vocabulary}, DType::bf16, need, full});
    if (lora) {
      o.push_back({"a", Role::weight, {lora_rank, hidden}, DType::bf16, for_any_grad, true});
      o.push_back({"b_lora", Role::weight, {vocabulary, lora_rank}, DType::bf16, for_any_grad, true});
    }
    o.push_back({"loss", Role::output, {1}, DType::f32});
    if (fused()) o.push_back({"dx", Role::aux, {tokens, hidden}, DType::bf16, for_input_grad});
    else o.push_back({"lse", Role::aux, {tokens}, DType::f32, for_any_grad});
    return o;
  }

  /// With P = 2 t h v and r-wide pairs beside it: forward P (2 P fused); backward the logits again (P), dx (P), dW if trained (P).
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double t = num(tokens), h = num(hidden), v = num(vocabulary), r = num(lora_rank);
    const double product = 2 * t * h * v, pair = 2 * t * r * (h + v), softmax = 4 * t * v;
    if (pass == Pass::forward) return {(fused() ? 2 * product : product) + pair + softmax};
    if (fused()) return {wants.input_grad ? t * h : 0};
    const bool dw = wants.weight_grad && training == Training::full, dpair = wants.weight_grad && lora_rank;
    if (!wants.input_grad && !dw && !dpair) return {0};
    double f = product + pair + softmax + 2 * t * r * v;
    if (wants.input_grad) f += product + 2 * t * r * h;
    if (dw) f += product;
    if (dpair) f += pair;
    return {f};
  }

  /// One chunk of logits in bf16, and wherever dx is made the float sums of a token chunk.
  [[nodiscard]] Bytes workspace(Pass pass, Wants wants) const {
    const std::int64_t t = std::min(tokens, token_chunk), logits = 2 * t * std::min(vocabulary, vocabulary_chunk), sums = 4 * t * hidden;
    if (pass == Pass::forward) return {logits + 8 * t + (fused() ? sums : 0)};
    if (fused() || wants == Wants{false, false}) return {0};
    return {logits + (wants.input_grad ? sums : 0)};
  }

  static std::vector<CrossEntropy> cases() {
    return {{.tokens = 7, .hidden = 16, .vocabulary = 33, .token_chunk = 4, .vocabulary_chunk = 8, .training = Training::full},
            {.tokens = 5, .hidden = 8, .vocabulary = 20, .token_chunk = 8, .vocabulary_chunk = 32, .bias = true, .training = Training::full, .z_loss = 1e-2, .label_smoothing = 0.1},
            {.tokens = 6, .hidden = 12, .vocabulary = 17, .token_chunk = 3, .vocabulary_chunk = 5, .training = Training::lora, .lora_rank = 4, .softcap = 5},
            {.tokens = 9, .hidden = 8, .vocabulary = 24, .token_chunk = 4, .vocabulary_chunk = 16, .fused_gradient = true, .logit_scale = 0.5},
            {.tokens = 0, .hidden = 8, .vocabulary = 16}};
  }

  bool operator==(const CrossEntropy&) const = default;
};

}  // namespace moeplan::op
