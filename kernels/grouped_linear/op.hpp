#pragma once
/// y = x W_e^T (+ b_e) (+ (alpha / r) x A_e^T B_e^T) for the rows of each local expert e, rows ordered by expert; one ragged call.
/// How many rows each expert has comes with the routing of the call's layer and micro-batch, not with an operand.
/// W may be frozen and stored quantised; A and B are the LoRA pairs, one an expert or one for all (`shared_adapter`).

#include <vector>

#include "kernels/arithmetic.hpp"
#include "kernels/contract.hpp"

namespace moeplan::op {

struct GroupedLinear {
  static constexpr std::string_view kind = "grouped_linear";

  std::int64_t rows = 0;                    ///< over all local experts: planned mean or bound
  std::int64_t experts = 0;                 ///< local
  std::int64_t in = 0, out = 0;
  bool bias = false;
  DType weight = DType::bf16;               ///< stored type of W
  Training training = Training::frozen;     ///< of W (and b); lora: W frozen, A and B trained
  std::int64_t lora_rank = 0;               ///< r; 0 without adapters
  bool shared_adapter = false;              ///< one pair for all experts
  double lora_scale = 1;                    ///< alpha / r

  template <class = void> static constexpr auto fields() {
    return std::make_tuple(field("rows", &GroupedLinear::rows, "over all local experts").at_least(0), field("experts", &GroupedLinear::experts, "local").above(0),
                           field("in", &GroupedLinear::in, "columns of x").above(0), field("out", &GroupedLinear::out, "columns of y").above(0),
                           field("bias", &GroupedLinear::bias), field("weight", &GroupedLinear::weight, "stored type of W"),
                           field("training", &GroupedLinear::training), field("lora_rank", &GroupedLinear::lora_rank, "r").at_least(0),
                           field("shared_adapter", &GroupedLinear::shared_adapter, "one pair for all experts"),
                           field("lora_scale", &GroupedLinear::lora_scale, "alpha / r"));
  }

  [[nodiscard]] Operands operands() const {
    const bool lora = lora_rank > 0, full = training == Training::full;
    const std::int64_t pairs = shared_adapter ? 1 : experts;
    Operands o;
    o.push_back({.name = "x", .role = Role::input, .shape = {rows, in}, .need = full || lora ? for_weight_grad : not_needed, .ragged = true});
    o.push_back({"w", Role::weight, {experts, out, in}, weight, for_input_grad, full});
    if (bias) o.push_back({"b", Role::weight, {experts, out}, DType::bf16, not_needed, full});
    if (lora) {
      o.push_back({"a", Role::weight, {pairs, lora_rank, in}, DType::bf16, for_input_grad, true});
      o.push_back({"b_lora", Role::weight, {pairs, out, lora_rank}, DType::bf16, for_any_grad, true});
    }
    o.push_back({.name = "y", .role = Role::output, .shape = {rows, out}, .ragged = true});
    if (lora) o.push_back({.name = "x_a", .role = Role::aux, .shape = {rows, lora_rank}, .need = for_weight_grad, .ragged = true});
    return o;
  }

  /// As `linear`, for the rows of all experts together.
  [[nodiscard]] Flops flops(Pass pass, Wants wants) const {
    const double t = num(rows), i = num(in), o = num(out), r = num(lora_rank);
    if (pass == Pass::forward) return {2 * t * i * o + 2 * t * r * (i + o)};
    double f = 0;
    if (wants.input_grad) f += 2 * t * i * o + 2 * t * r * i;
    if (wants.weight_grad && training == Training::full) f += 2 * t * i * o;
    if (wants.weight_grad && lora_rank) f += 2 * t * r * (i + o);
    if (lora_rank && (wants.input_grad || wants.weight_grad)) f += 2 * t * r * o;
    return {f};
  }

  static std::vector<GroupedLinear> cases() {
    return {{7, 3, 16, 8}, {33, 4, 24, 17, true}, {20, 2, 12, 10, false, DType::bf16, Training::full}, {17, 3, 16, 12, false, DType::bf16, Training::lora, 4},
            {9, 5, 8, 8, false, DType::bf16, Training::lora, 2, true}, {0, 2, 8, 8, false, DType::bf16, Training::lora, 2}};
  }

  bool operator==(const GroupedLinear&) const = default;
};

}  // namespace moeplan::op
