#pragma once
/// y_t = scale * w[ids_t] (+ (alpha / r) A[:, ids_t]^T B^T): a table look-up. Learned positions are one more, over position ids.

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct Embedding {
  static constexpr std::string_view kind = "embedding";

  std::int64_t tokens = 0;
  std::int64_t vocabulary = 0;              ///< rows of w on this rank
  std::int64_t hidden = 0;
  Training training = Training::frozen;
  std::int64_t lora_rank = 0;               ///< r; 0 without an adapter
  double scale = 1;                         ///< multiplier of the looked-up row (Grok-1, Granite)
  double lora_scale = 1;                    ///< alpha / r

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &Embedding::tokens, "ids to look up").at_least(0),
                           field("vocabulary", &Embedding::vocabulary, "rows of w").above(0), field("hidden", &Embedding::hidden, "columns of w").above(0),
                           field("training", &Embedding::training), field("lora_rank", &Embedding::lora_rank, "r").at_least(0),
                           field("scale", &Embedding::scale, "multiplies y"), field("lora_scale", &Embedding::lora_scale, "alpha / r"));
  }

  [[nodiscard]] Operands operands() const {
    const bool full = training == Training::full, lora = lora_rank > 0;
    Operands o;
    o.push_back({"ids", Role::index, {tokens}, DType::i32, full || lora ? for_weight_grad : not_needed});
    o.push_back({"w", Role::weight, {vocabulary, hidden}, DType::bf16, not_needed, full});
    if (lora) {
      o.push_back({"a", Role::weight, {lora_rank, vocabulary}, DType::bf16, not_needed, true});
      o.push_back({"b_lora", Role::weight, {hidden, lora_rank}, DType::bf16, for_weight_grad, true});
    }
    o.push_back({"y", Role::output, {tokens, hidden}});
    if (lora) o.push_back({"x_a", Role::aux, {tokens, lora_rank}, DType::bf16, for_weight_grad});
    return o;
  }

  /// The look-up itself is free; the pair costs 2 t r h forward and 4 t r h backward (dB, and dy B for dA). A trained table
  /// adds t h accumulations.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double t = num(tokens), h = num(hidden), r = num(lora_rank);
    if (pass == Pass::forward) return {2 * t * r * h};
    if (!wants.weight_grad) return {0};
    return {4 * t * r * h + (training == Training::full ? t * h : 0)};
  }

  /// Only the rows that are looked up move, not the table: forward reads and writes t rows, a trained table's backward reads
  /// dy and reads and writes the touched rows.
  [[nodiscard]] Bytes bytes_moved(Pass pass, Wants wants) const {
    const std::int64_t row = 2 * hidden, pair = lora_rank ? 2 * (tokens * lora_rank * 2 + hidden * lora_rank) : 0;
    if (pass == Pass::forward) return {tokens * (4 + 2 * row) + pair};
    if (!wants.weight_grad || (training != Training::full && !lora_rank)) return {0};
    return {tokens * (4 + row + (training == Training::full ? 2 * row : 0)) + 2 * pair};
  }

  static std::vector<Embedding> cases() {
    return {{7, 33, 64}, {129, 50, 24, Training::full}, {5, 17, 32, Training::lora, 4}, {1, 1, 8, Training::full}, {0, 33, 64}};
  }

  bool operator==(const Embedding&) const = default;
};

}  // namespace moeplan::op
