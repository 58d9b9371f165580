#pragma once
/// Chooses `top_k` of `experts` for each token and weighs them. Scores s = softmax(z), sigmoid(z) or sqrt(softplus(z)) of z = x W^T
/// (+ b); chosen by s + score_bias (ties to the lower expert), groups first where there are several; weights s_e over their chosen
/// sum if `normalise`, times `route_scale`. The gradient reaches x and W through the chosen scores only; none through score_bias.
/// `sparse_mixer` (Phi-3.5-MoE, arXiv 2409.12136): each choice in turn is the largest z left, with the weight e^z over the sum of those left
/// that come within 2 x jitter of it, (z - z_e) / max(|z_e|, z) <= 2 x jitter. Hash routing (DeepSeek-V4): the experts come from a table by token id, the weights from the scores. `zero_experts` are further
/// rows without weights (LongCat): what they drew is returned as one more weight, for the token itself.

#include <vector>

#include "core/spec/model.hpp"
#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Router {
  static constexpr std::string_view kind = "router";

  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t experts = 0;            ///< with weights
  std::int64_t top_k = 0;
  RouterScore score = RouterScore::softmax;
  std::int64_t groups = 1, top_groups = 1;
  bool normalise = true;
  bool bias = false;                   ///< of the projection (gpt-oss)
  bool score_bias = false;             ///< correction buffer
  std::int64_t zero_experts = 0;
  std::int64_t hash_vocabulary = 0;    ///< rows of the table of hash routing; 0: chosen by score
  Training training = Training::frozen;   ///< of W and b
  double route_scale = 1;
  double jitter = 0.01;                ///< sparse_mixer

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(
        field("tokens", &Router::tokens).at_least(0), field("hidden", &Router::hidden).above(0), field("experts", &Router::experts, "with weights").above(0),
        field("top_k", &Router::top_k, "experts a token").above(0), field("score", &Router::score), field("groups", &Router::groups).above(0),
        field("top_groups", &Router::top_groups, "groups a token may use").above(0), field("normalise", &Router::normalise, "chosen weights sum to one"),
        field("bias", &Router::bias, "of the projection"), field("score_bias", &Router::score_bias, "correction of the choice"),
        field("zero_experts", &Router::zero_experts, "rows without an expert").at_least(0),
        field("hash_vocabulary", &Router::hash_vocabulary, "rows of the hash table; 0: by score").at_least(0), field("training", &Router::training),
        field("route_scale", &Router::route_scale, "multiplies the weights").above(0), field("jitter", &Router::jitter, "of sparse_mixer").at_least(0));
  }

  [[nodiscard]] Operands operands() const {
    const bool full = training == Training::full;
    const std::int64_t rows = experts + zero_experts;
    Operands o;
    o.push_back({"x", Role::input, {tokens, hidden}, DType::bf16, full ? for_weight_grad : not_needed});
    if (hash_vocabulary) o.push_back({"ids", Role::index, {tokens}, DType::i32});
    o.push_back({"w", Role::weight, {rows, hidden}, DType::bf16, for_input_grad, full});
    if (bias) o.push_back({"b", Role::weight, {rows}, DType::bf16, not_needed, full});
    if (score_bias) o.push_back({"score_bias", Role::weight, {rows}, DType::f32});
    if (hash_vocabulary) o.push_back({"table", Role::weight, {hash_vocabulary, top_k}, DType::i32});
    o.push_back({"weights", Role::output, {tokens, top_k}, DType::f32});
    if (zero_experts) o.push_back({"zero_weight", Role::output, {tokens, 1}, DType::f32});
    o.push_back({"indices", Role::aux, {tokens, top_k}, DType::i32, for_any_grad});
    o.push_back({"scores", Role::aux, {tokens, rows}, DType::f32, for_any_grad});
    if (score == RouterScore::sparse_mixer) o.push_back({"logits", Role::aux, {tokens, rows}, DType::f32, for_any_grad});
    o.push_back({"counts", Role::aux, {rows}, DType::i32});
    return o;
  }

  /// The projection; the selection compares. Backward: a projection for dx, another for dW if trained.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double product = 2 * num(tokens) * num(hidden) * num(experts + zero_experts);
    if (pass == Pass::forward) return {product};
    return {(wants.input_grad ? product : 0) + (wants.weight_grad && training == Training::full ? product : 0)};
  }

  static std::vector<Router> cases() {
    return {{.tokens = 7, .hidden = 16, .experts = 8, .top_k = 2, .training = Training::full},
            {.tokens = 5, .hidden = 12, .experts = 12, .top_k = 4, .score = RouterScore::sigmoid, .groups = 4, .top_groups = 2, .score_bias = true, .route_scale = 2.5},
            {.tokens = 3, .hidden = 8, .experts = 6, .top_k = 3, .normalise = false, .bias = true, .training = Training::full},
            {.tokens = 4, .hidden = 8, .experts = 5, .top_k = 2, .score = RouterScore::sqrt_softplus, .hash_vocabulary = 9},
            {.tokens = 6, .hidden = 8, .experts = 4, .top_k = 2, .score_bias = true, .zero_experts = 2},
            {.tokens = 9, .hidden = 8, .experts = 6, .top_k = 2, .score = RouterScore::sparse_mixer, .normalise = false, .training = Training::full, .jitter = 0.4},
            {.tokens = 0, .hidden = 8, .experts = 4, .top_k = 2}};
  }

  bool operator==(const Router&) const = default;
};

}  // namespace moeplan::op
