#pragma once
/// One small product a head: with W in `heads` blocks of `block` rows, y_h = x_h W_h[begin : begin + count]^T, or transposed
/// y_h = x_h W_h[begin : begin + count]. MLA's absorbed form uses kv_b twice: its key rows transposed (query into the latent) and
/// its value rows plainly (latent output into heads). DeepSeek-V4's grouped output uses whole blocks.
/// The LoRA pair is that of the whole W: A [r, in] shared by the heads, B [heads * block, r].

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct HeadLinear {
  static constexpr std::string_view kind = "head_linear";

  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t in = 0;                      ///< columns of W
  std::int64_t block = 0;                   ///< rows of W a head
  std::int64_t begin = 0, count = 0;        ///< rows of a block that this call uses
  bool transposed = false;
  DType weight = DType::bf16;
  Training training = Training::frozen;
  std::int64_t lora_rank = 0;               ///< r; 0 without an adapter
  double lora_scale = 1;                    ///< alpha / r

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("tokens", &HeadLinear::tokens).at_least(0), field("heads", &HeadLinear::heads).above(0), field("in", &HeadLinear::in, "columns of W").above(0),
                           field("block", &HeadLinear::block, "rows of W a head").above(0), field("begin", &HeadLinear::begin, "first row of a block used").at_least(0),
                           field("count", &HeadLinear::count, "rows of a block used").above(0), field("transposed", &HeadLinear::transposed, "from rows to columns"),
                           field("weight", &HeadLinear::weight, "stored type of W"), field("training", &HeadLinear::training),
                           field("lora_rank", &HeadLinear::lora_rank, "r").at_least(0), field("lora_scale", &HeadLinear::lora_scale, "alpha / r"));
  }

  [[nodiscard]] Operands operands() const {
    const bool lora = lora_rank > 0, full = training == Training::full;
    Operands o;
    o.push_back({"x", Role::input, {tokens, heads * (transposed ? count : in)}, DType::bf16, full || lora ? for_weight_grad : not_needed});
    o.push_back({"w", Role::weight, {heads * block, in}, weight, for_input_grad, full});
    if (lora) {
      o.push_back({"a", Role::weight, {lora_rank, in}, DType::bf16, for_any_grad, true});
      o.push_back({"b_lora", Role::weight, {heads * block, lora_rank}, DType::bf16, for_any_grad, true});
    }
    o.push_back({"y", Role::output, {tokens, heads * (transposed ? in : count)}});
    if (lora) o.push_back({"x_pair", Role::aux, {tokens, heads * lora_rank}, DType::bf16, for_weight_grad});
    return o;
  }

  /// As `linear` with t x heads rows.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double n = 2 * num(tokens) * num(heads), i = num(in), o = num(count), r = num(lora_rank);
    const double product = n * i * o, pair = n * r * (i + o);
    if (pass == Pass::forward) return {product + pair};
    double f = 0;
    if (wants.input_grad) f += product + pair;
    if (wants.weight_grad && training == Training::full) f += product;
    if (wants.weight_grad && lora_rank) f += pair + (wants.input_grad ? 0 : n * r * (transposed ? i : o));
    return {f};
  }

  static std::vector<HeadLinear> cases() {
    return {{.tokens = 5, .heads = 3, .in = 8, .block = 6, .count = 6}, {.tokens = 4, .heads = 2, .in = 7, .block = 9, .begin = 2, .count = 5, .transposed = true, .training = Training::full},
            {.tokens = 3, .heads = 2, .in = 6, .block = 8, .begin = 4, .count = 4, .training = Training::lora, .lora_rank = 2},
            {.tokens = 3, .heads = 2, .in = 6, .block = 8, .count = 4, .transposed = true, .training = Training::lora, .lora_rank = 3},
            {.tokens = 0, .heads = 2, .in = 4, .block = 4, .count = 4}};
  }

  bool operator==(const HeadLinear&) const = default;
};

}  // namespace moeplan::op
